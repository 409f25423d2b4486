"""Follows a task as its callers do: frames cut from stored entries, through the one hub (I1, I3).

A reader never contacts the agent: it reads stored events, at its own pace, on any instance. A follower of a turn begins
at the start of the turn; a follower of a task gets the Task first and then only later events.
"""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final, Literal, assert_never

import orjson

from passerelle.channels.pages import Page
from passerelle.channels.position import CursorGap, ReplayEnd
from passerelle.channels.stream_ends import StreamOpening
from passerelle.channels.stream_frame import FollowedStream, StreamFrame
from passerelle.channels.views import TaskView
from passerelle.core.batch import EntityKind, EntityRef
from passerelle.core.errors import (
    BadCursor,
    NotFound,
    StoreUnavailable,
    UnsupportedOperation,
)
from passerelle.core.event_type import EventType
from passerelle.core.events import decode_event
from passerelle.core.frozen import frozen
from passerelle.core.ids import shard_of
from passerelle.core.payloads.conversation import TurnFailed
from passerelle.core.payloads.run import RunStatus
from passerelle.core.payloads.task import TaskUpdated
from passerelle.core.ports.log import StreamKind, StreamRef
from passerelle.core.task.record import TaskRecord
from passerelle.core.task.status import ENDED
from passerelle.core.wire.record import change
from passerelle.protocol.cursor import Cursor, parse_cursor
from passerelle.runtime.records.accepted_turns import (
    check_owner,
    check_taken,
    find_exposure,
    is_active,
)
from passerelle.runtime.records.long_content import LongContent
from passerelle.runtime.records.ownership import Owned
from passerelle.runtime.records.refusals import explain_failure, make_error

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence
    from contextlib import AsyncExitStack

    from passerelle.a2a_mapping.resume import ResumeRequest
    from passerelle.channels.hub import Hub
    from passerelle.channels.position import Position, PositionItem
    from passerelle.channels.stream_ends import StreamEnd
    from passerelle.channels.stream_frame import Frames
    from passerelle.core.commands import TurnAccepted
    from passerelle.core.errors import PasserelleError
    from passerelle.core.ids import Shard
    from passerelle.core.ports.log import Entry
    from passerelle.runtime.records.contents import Contents
    from passerelle.runtime.records.inbox_arrivals import InboxArrivals
    from passerelle.runtime.records.writes import Writes

_AT_ONCE: Final = 16
_AT_ONCE_BYTES: Final = 65_536
"""Limit of frames per batch: more would wait in memory for a slow reader."""
_LONG_BYTES: Final = 65_536
"""Artifact chunks over this size are not loaded: readers that can stream them read the blob store."""
_PIECE: Final = b'{"artifactUpdate"'
_TASK: Final = b'{"task":'
_PATIENCE_S: Final = 60.0
_RETRY_S: Final = 0.25
# Constants, since each entry is compared with them: an enum computes a member's value each time.
_TASK_UPDATED: Final = str(EventType.TASK_UPDATED.value)
_TURN_FAILED: Final = str(EventType.TURN_FAILED.value)
_RUN_STATUS: Final = str(EventType.RUN_STATUS.value)
_STALLED: Final = b'"stalled":true'
_ASKING: Final = frozenset({EventType.ACTION_REQUIRED.value, EventType.PERMISSION_REQUESTED.value})
LAST: Final = frozenset(
    {
        EventType.TASK_COMPLETED.value,
        EventType.TASK_FAILED.value,
        EventType.TASK_CANCELLED.value,
        EventType.TASK_TIMED_OUT.value,
    }
)


@frozen
class Sender:
    """A reader that has sent a message, or is about to.

    ``awaits``: turns whose answer is awaited: their message must be accepted, and the wait ends when the task reports
    that it is stalled. ``until``: ends the stream before the task ends. ``opening``: holds the first Task back until it
    contains the message.
    """

    awaits: Sequence[str] = ()
    until: StreamEnd | None = None
    opening: StreamOpening | None = None


_NO_SENDER: Final = Sender()


@frozen
class Repeat:
    """A message that was accepted before; ``is_active``: its answer is still pending."""

    is_active: bool


@dataclass(slots=True)
class TaskFollower:
    """Opens followers."""

    writes: Writes
    hub: Hub
    contents: Contents
    arrivals: InboxArrivals

    async def follow_turn(
        self,
        stack: AsyncExitStack,
        accepted: TurnAccepted,
        owner: str,
        until: StreamEnd | None,
    ) -> FollowedStream:
        """The frames of a task from its first one, until it ends, answers with a Message, or ``until`` is over.

        ``stack`` closes what is opened.

        Raises:
            NotFound: the task no longer belongs to the owner.
        """
        stream = StreamRef(StreamKind.SESSION, accepted.session_id)
        record = await self._load(accepted, owner)
        start = await self._start(stream, record.first - 1)
        opening = self.hub.open(stream, TaskView(accepted.task_id), start)
        position = await stack.enter_async_context(opening)
        awaits = [accepted.turn_id]
        frames = self._cut(position, accepted.facade, record, sender=Sender(awaits, until))
        return FollowedStream(frames, awaits=awaits)

    async def follow_task(
        self,
        stack: AsyncExitStack,
        owned: Owned,
        facade: str,
        wish: ResumeRequest | None,
        until: StreamEnd | None,
        *,
        sends: bool,
    ) -> FollowedStream:
        """The current Task, then later frames; or, after the cursor of ``wish``, the missed ones first.

        An invalid cursor is answered with the Task, and never with a part of the missed frames (I8). The Task and the
        position after it come from one load, so that nothing older follows the Task. A reader that ``sends`` a message
        next, and adds its turn to ``awaits``, gets the Task with that message in it; whether an ended task accepts it
        is not checked here, since the message may be a repeat.

        Raises:
            UnsupportedOperation: the task has ended, and no cursor was sent (A2A 1.0, section 3.1.6).
        """
        record = owned.record
        if wish is None:
            if record.status in ENDED and not sends:
                raise UnsupportedOperation(
                    f"the task has ended: {record.status}", status=record.status
                )
            awaits: list[str] | None = [] if sends else None
            frames = await self._begin(stack, owned, facade, awaits, until)
            return FollowedStream(frames, awaits=[] if awaits is None else awaits)
        resumed = await self._resume(stack, record, facade, wish)
        if resumed is not None:
            return FollowedStream(resumed, resumed=True)
        return FollowedStream(await self._begin(stack, owned, facade), resumed=False)

    async def follow_repeat(
        self, stack: AsyncExitStack, accepted: TurnAccepted, owner: str, until: StreamEnd | None
    ) -> FollowedStream:
        """The current Task for a repeated follow-up message, then its pending frames.

        Raises:
            NotFound: the task no longer belongs to the owner.
            PeerRefused, InvalidAgentResponse: the agent did not accept the message.
        """
        task_ref = EntityRef(EntityKind.TASK, accepted.task_id)
        thread_ref = EntityRef(EntityKind.THREAD, accepted.thread_id)
        held = await self.writes.load([task_ref, thread_ref])
        seen, thread = find_exposure(accepted, held[task_ref]), held[thread_ref].record
        record = seen.record
        if not isinstance(record, TaskRecord):
            raise NotFound("task", accepted.facade)
        check_owner(record, owner, accepted)
        check_taken(thread, accepted.turn_id)
        awaits = [accepted.turn_id]
        repeat = Repeat(is_active(thread, accepted.turn_id))
        owned = Owned(task_ref, seen, record)
        frames = await self._begin(stack, owned, accepted.facade, awaits, until, repeat)
        return FollowedStream(frames, awaits=awaits)

    async def _begin(
        self,
        stack: AsyncExitStack,
        owned: Owned,
        facade: str,
        awaits: Sequence[str] | None = None,
        until: StreamEnd | None = None,
        repeat: Repeat | None = None,
    ) -> Frames:
        record = owned.record
        if until is not None:
            until.begin(record)
        start = await self.locate(record)
        # A sender's Task is folded further until it contains the message, so it is read whole.
        read = self.contents.read_slim if awaits is None else self.contents.read_task
        task = await read(record, owned.held.fields)
        if task is None:
            raise NotFound("task", facade)
        if isinstance(task, LongContent):
            first = StreamFrame(
                _TASK, str(start), seen=record.generation, long=task.wrap(_TASK, b"}")
            )
        else:
            first = StreamFrame(orjson.dumps({"task": task}), str(start), seen=record.generation)
        if record.status in ENDED or (repeat is not None and not repeat.is_active):
            return _only(first)
        stream = StreamRef(StreamKind.SESSION, record.session_id)
        position = await stack.enter_async_context(
            self.hub.open(stream, TaskView(record.task_id), start)
        )
        if awaits is None or isinstance(task, LongContent):
            return _prepend(first, self._cut(position, facade, record, shown=True))
        shard = shard_of(record.task_id)
        opening = StreamOpening(self.contents, shard, task, record.generation, awaits)
        opening.is_taken = repeat is not None
        if opening.is_ready:
            sender = Sender(awaits, until)
            return _prepend(first, self._cut(position, facade, record, shown=True, sender=sender))
        sender = Sender(awaits, until, opening)
        return self._cut(position, facade, record, shown=True, sender=sender)

    async def _resume(
        self, stack: AsyncExitStack, record: TaskRecord, facade: str, wish: ResumeRequest
    ) -> Frames | None:
        """The frames after a cursor; None if it cannot be honoured exactly."""
        try:
            cursor = parse_cursor(wish.after)
        except BadCursor:
            return None
        stream = StreamRef(StreamKind.SESSION, record.session_id)
        opening = self.hub.open(stream, TaskView(record.task_id), cursor)
        position = await stack.enter_async_context(opening)
        first = await take_step(position, patience_s=0)
        if first is None or isinstance(first, CursorGap):
            return None
        ended = record.status in ENDED
        frames = self._cut(position, facade, record, first=first, shown=True, ended=ended)
        if not wish.snapshot:
            return frames
        head = await self.writes.log.read_head(stream)
        if head is None or head.first > record.first:
            return None
        return await self._precede(record, cursor, frames)

    async def _precede(self, record: TaskRecord, cursor: Cursor, frames: Frames) -> Frames:
        """Prepends the Task as of the cursor to ``frames``; returns ``frames`` alone if there was none yet."""
        then = await self.contents.fold_task(change(record, last=min(record.last, cursor.sequence)))
        if then.task is None:
            return frames
        first = StreamFrame(orjson.dumps({"task": then.task}), str(cursor), seen=then.frames)
        return _prepend(first, frames)

    async def locate(self, record: TaskRecord) -> Cursor:
        """The position after everything that a record contains."""
        return await self._start(StreamRef(StreamKind.SESSION, record.session_id), record.last)

    async def _load(self, accepted: TurnAccepted, owner: str) -> TaskRecord:
        record = await self.writes.read(TaskRecord, accepted.task_id)
        if record is None or record.owner != owner:
            raise NotFound("task", accepted.facade)
        return record

    async def _start(self, stream: StreamRef, after: int) -> Cursor:
        """The cursor at a sequence that is known to be stored; its chain comes from the next entry."""
        head, entries = await self.writes.log.read_resume(stream, after, 1)
        if head is None:
            raise StoreUnavailable("the stream is gone", "no")
        if not entries:
            return Cursor(head.epoch, head.sequence, head.chain)
        # Entries in between were archived; none of them is newer than the read that ``after`` comes from.
        return Cursor(head.epoch, entries[0].sequence - 1, entries[0].previous)

    async def _cut(
        self,
        position: Position,
        facade: str,
        record: TaskRecord,
        *,
        first: Page | ReplayEnd | None = None,
        shown: bool = False,
        ended: bool = False,
        sender: Sender = _NO_SENDER,
    ) -> Frames:
        """The frames of a facade task until it ends, or until ``sender`` ends, in batches.

        ``record`` is the task when its ownership was checked. ``first`` was taken from the position already. ``ended``:
        no frames follow the stored ones.

        Raises:
            NotFound: another principal owns it from here on.
            PeerRefused, InvalidAgentResponse: the agent did not accept a message of the sender.
        """
        until = sender.until
        task_id = record.task_id
        while (item := first or await take_step(position)) is not None:
            first = None
            match item:
                case Page():
                    self._note_asked(item, record)
                    item, over = _cut_page(item, facade, record.last, sender.awaits)
                    async for frames in self._read_page(item, facade, shard_of(task_id), sender):
                        shown = True
                        yield frames
                    if isinstance(over, Exception):
                        raise over
                    if over == "ended" and not shown:
                        raise await self._explain(task_id)
                    if over is not None or (until is not None and until.is_over):
                        return
                case ReplayEnd():
                    if ended:
                        return
                case CursorGap(why=why):
                    raise StoreUnavailable(f"the stream cannot be followed on ({why.value})", "no")
                case _:
                    assert_never(item)

    def _note_asked(self, page: Page, record: TaskRecord) -> None:
        if any(linked.entry.type in _ASKING for linked in page.entries):
            self.arrivals.note(record.owner, shard_of(record.task_id))

    async def _read_page(
        self,
        page: Page,
        facade: str,
        shard: Shard,
        sender: Sender,
    ) -> Frames:
        until, opening = sender.until, sender.opening
        frames: list[StreamFrame] = []
        size = 0
        for linked in page.entries:
            entry, epoch = linked.entry, page.cursor.epoch
            if until is not None:
                until.note(entry)
            frame: StreamFrame | None = None
            if entry.facade == facade:
                cursor = str(Cursor(epoch, entry.sequence, linked.chain))
                if entry.frame is not None:
                    frame = StreamFrame(entry.cut_frame(), cursor, entry.data, forms=linked.memo)
                else:
                    frame = await self._read_long(entry, cursor, shard)
            if opening is not None and not opening.is_shown:
                frame = await frame.load() if frame is not None else None
                cursor = str(Cursor(epoch, entry.sequence, linked.chain))
                frame = await opening.take(entry, frame, cursor)
            if frame is not None:
                frames.append(frame if until is None else until.show(frame))
                size += len(frame.data)
            if until is not None and until.is_over:
                break
            if len(frames) == _AT_ONCE or size >= _AT_ONCE_BYTES:
                yield frames
                frames, size = [], 0
        if frames:
            yield frames

    async def _read_long(self, entry: Entry, cursor: str, shard: Shard) -> StreamFrame:
        """A frame that is stored outside of its entry."""
        # Forms of such a frame are not cached with the entry: all of them would be in memory together.
        long = self.contents.find_frame(entry, shard)
        if long is not None and long.json.size > _LONG_BYTES:
            begin = await self.contents.peek(long, len(_PIECE))
            if begin == _PIECE:
                return StreamFrame(begin, cursor, entry.data, long=long)
        data = orjson.dumps(await self.contents.read_frame(entry, shard))
        return StreamFrame(data, cursor, entry.data)

    async def _explain(self, task_id: str) -> PasserelleError:
        record = await self.writes.read(TaskRecord, task_id)
        return explain_failure(record)


def _cut_page(
    page: Page, facade: str, since: int, awaits: Sequence[str]
) -> tuple[Page, PasserelleError | Literal["stalled", "ended"] | None]:
    """The page up to the reader's end, and the reason; None if it reads on.

    The last event that the reader gets is included.
    """
    for number, linked in enumerate(page.entries):
        entry = linked.entry
        reason: PasserelleError | None = None
        if awaits and _is_stalled(entry):
            return replace(page, entries=page.entries[: number + 1]), "stalled"
        if entry.type == _TASK_UPDATED and entry.sequence > since:
            payload = decode_event(entry.data).fact.payload
            if isinstance(payload, TaskUpdated) and payload.new_owner:
                reason = NotFound("task", facade)
        elif awaits and entry.type == _TURN_FAILED:
            reason = _read_refusal(entry, awaits)
        if reason is not None:
            return replace(page, entries=page.entries[:number]), reason
    return page, "ended" if _has_end(page, facade) else None


def _has_end(page: Page, facade: str) -> bool:
    """Whether the task ends in this page; the end of an earlier exposure does not count."""
    return any(
        linked.entry.type in LAST and linked.entry.facade in {None, facade}
        for linked in page.entries
    )


def _is_stalled(entry: Entry) -> bool:
    """Whether this entry reports to a waiting sender that the task is stalled."""
    if entry.type != _RUN_STATUS or _STALLED not in entry.data:
        return False
    payload = decode_event(entry.data).fact.payload
    return isinstance(payload, RunStatus) and payload.stalled is True


def _read_refusal(entry: Entry, awaits: Sequence[str]) -> PasserelleError | None:
    """Why the agent did not accept an awaited message, if the entry reports that."""
    fact = decode_event(entry.data).fact
    payload = fact.payload
    if not isinstance(payload, TurnFailed) or not payload.refused:
        return None
    return make_error(payload.error) if fact.scope.turn_id in awaits else None


async def _prepend(first: StreamFrame, rest: Frames) -> Frames:
    frames = [first]
    # A reader may wait for hours, and the Task it got long ago may be large.
    del first
    yield frames
    del frames
    async with aclosing(rest):
        async for later in rest:
            yield later


async def _only(frame: StreamFrame) -> Frames:
    yield [frame]


async def take_step(
    steps: AsyncIterator[PositionItem], patience_s: float = _PATIENCE_S
) -> PositionItem | None:
    """The next item, or None at the end; retries while the store is unavailable: the position has not moved.

    Raises:
        StoreUnavailable: it was unavailable for ``patience_s``.
    """
    loop = asyncio.get_running_loop()
    until_s: float | None = None
    while True:
        try:
            return await anext(steps, None)
        except StoreUnavailable:
            # Counted from the first failure: the wait for an event before it may have been long.
            until_s = until_s or loop.time() + patience_s
            if loop.time() >= until_s:
                raise
        await asyncio.sleep(_RETRY_S)
