"""Following a task as its callers do: frames cut out of stored entries, through the one hub (I1, I3).

A reader never touches the peer: it reads what is stored, at its own pace, on any instance. A follower of a turn begins
where the turn begins; a follower of a task gets the Task first and then only what came after it.
"""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final, assert_never

import orjson

from passerelle.channels.cursor import Cursor, parse_cursor
from passerelle.channels.pages import Page
from passerelle.channels.position import Gap, Live
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
from passerelle.core.ids import place
from passerelle.core.payloads.task import TaskUpdated
from passerelle.core.ports.log import StreamKind, StreamRef
from passerelle.core.record import change
from passerelle.core.status import ENDED
from passerelle.core.task_record import TaskRecord
from passerelle.gateway.control.failures import explain_failure
from passerelle.gateway.control.stream_frame import Followed, StreamFrame

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from contextlib import AsyncExitStack

    from passerelle.a2a_mapping.resume import ResumeWish
    from passerelle.channels.cursor import Linked
    from passerelle.channels.hub import Hub
    from passerelle.channels.position import Item, Position
    from passerelle.core.commands import TurnAccepted
    from passerelle.core.errors import PasserelleError
    from passerelle.core.ids import Shard
    from passerelle.core.ports.log import EventLog
    from passerelle.gateway.control.contents import Contents
    from passerelle.gateway.control.ownership import Owned
    from passerelle.gateway.control.stream_frame import Frames
    from passerelle.gateway.control.writes import Writes

_AT_ONCE: Final = 16
"""Frames that a reader is given together: more would wait in memory for one that is slow."""
_PATIENCE_S: Final = 60.0
_RETRY_S: Final = 0.25
LAST: Final = frozenset(
    {
        EventType.TASK_COMPLETED.value,
        EventType.TASK_FAILED.value,
        EventType.TASK_CANCELLED.value,
        EventType.TASK_TIMED_OUT.value,
    }
)


@dataclass(slots=True)
class Following:
    """Opens followers."""

    writes: Writes
    log: EventLog
    hub: Hub
    contents: Contents

    async def follow_turn(
        self, stack: AsyncExitStack, accepted: TurnAccepted, owner: str
    ) -> Followed:
        """The frames of a task from its first one on, until it ends or answers with a Message.

        What is opened is closed by ``stack``.

        Raises:
            NotFound: the task is not the owner's any more.
        """
        stream = StreamRef(StreamKind.SESSION, accepted.session_id)
        record = await self._load(accepted, owner)
        start = await self._start(stream, record.first - 1)
        opening = self.hub.open(stream, TaskView(accepted.task_id), start)
        position = await stack.enter_async_context(opening)
        return Followed(self._cut(position, accepted.facade, record))

    async def follow_task(
        self, stack: AsyncExitStack, owned: Owned, facade: str, wish: ResumeWish | None = None
    ) -> Followed:
        """The Task as it stands, then what comes after it; or, after the cursor of ``wish``, what was missed first.

        A cursor that does not hold is answered with the Task, and never with a part of what was missed (I8). The Task
        and the position behind it are of one load, so that nothing older comes after the Task.

        Raises:
            UnsupportedOperation: the task has ended, and no cursor was sent (A2A 1.0, section 3.1.6).
        """
        record = owned.record
        if wish is None:
            if record.status in ENDED:
                raise UnsupportedOperation(
                    f"the task has ended: {record.status}", status=record.status
                )
            return Followed(await self._begin(stack, owned, facade))
        resumed = await self._resume(stack, record, facade, wish)
        if resumed is not None:
            return Followed(resumed, resumed=True)
        return Followed(await self._begin(stack, owned, facade), resumed=False)

    async def _begin(self, stack: AsyncExitStack, owned: Owned, facade: str) -> Frames:
        record = owned.record
        start = await self.locate(record)
        task = await self.contents.read_task(record, owned.held.fields)
        if task is None:
            raise NotFound("task", facade)
        first = StreamFrame(orjson.dumps({"task": task}), str(start), seen=record.generation)
        if record.status in ENDED:
            return _only(first)
        stream = StreamRef(StreamKind.SESSION, record.session_id)
        opening = self.hub.open(stream, TaskView(record.task_id), start)
        position = await stack.enter_async_context(opening)
        return _prepend(first, self._cut(position, facade, record, shown=True))

    async def _resume(
        self, stack: AsyncExitStack, record: TaskRecord, facade: str, wish: ResumeWish
    ) -> Frames | None:
        """What comes after a cursor; None where it cannot be honoured exactly."""
        try:
            cursor = parse_cursor(wish.after)
        except BadCursor:
            return None
        stream = StreamRef(StreamKind.SESSION, record.session_id)
        opening = self.hub.open(stream, TaskView(record.task_id), cursor)
        position = await stack.enter_async_context(opening)
        first = await take_step(position, patience_s=0)
        if first is None or isinstance(first, Gap):
            return None
        ended = record.status in ENDED
        frames = self._cut(position, facade, record, first=first, shown=True, ended=ended)
        if not wish.snapshot:
            return frames
        head = await self.log.read_head(stream)
        if head is None or head.first > record.first:
            return None
        return await self._precede(record, cursor, frames)

    async def _precede(self, record: TaskRecord, cursor: Cursor, frames: Frames) -> Frames:
        """The Task as it stood at the cursor before ``frames``; only these, where there was none yet."""
        then = await self.contents.fold_task(change(record, last=min(record.last, cursor.sequence)))
        if then.task is None:
            return frames
        first = StreamFrame(orjson.dumps({"task": then.task}), str(cursor), seen=then.frames)
        return _prepend(first, frames)

    async def locate(self, record: TaskRecord) -> Cursor:
        """The position behind everything that a record contains."""
        return await self._start(StreamRef(StreamKind.SESSION, record.session_id), record.last)

    async def _load(self, accepted: TurnAccepted, owner: str) -> TaskRecord:
        ref = EntityRef(EntityKind.TASK, accepted.task_id)
        record = (await self.writes.load([ref]))[ref].record
        if not isinstance(record, TaskRecord) or record.owner != owner:
            raise NotFound("task", accepted.facade)
        return record

    async def _start(self, stream: StreamRef, after: int) -> Cursor:
        """The cursor at a sequence that is known to be stored; its chain comes from the entry behind it."""
        head, entries = await self.log.read_resume(stream, after, 1)
        if head is None:
            raise StoreUnavailable("the stream is gone", "no")
        if not entries:
            return Cursor(head.epoch, head.sequence, head.chain)
        # What lies between was archived; nothing of it is newer than the read that ``after`` comes from.
        return Cursor(head.epoch, entries[0].sequence - 1, entries[0].previous)

    async def _cut(
        self,
        position: Position,
        facade: str,
        record: TaskRecord,
        *,
        first: Page | Live | None = None,
        shown: bool = False,
        ended: bool = False,
    ) -> Frames:
        """The frames of a facade task up to its end, as many at once as are there.

        ``record`` is the task as it was when it was found to be the reader's. ``first`` has been taken from the
        position already. ``ended``: behind what is stored there is nothing to wait for.

        Raises:
            NotFound: it is somebody else's from here on.
        """
        task_id = record.task_id
        while (item := first or await take_step(position)) is not None:
            first = None
            match item:
                case Page():
                    item, given = _cut_given(item, record.last)
                    async for frames in self._read_page(item, facade, place(task_id)):
                        shown = True
                        yield frames
                    if given:
                        raise NotFound("task", facade)
                    # The end of an earlier exposure is none of this one; an end that nobody saw has no id.
                    if any(
                        linked.entry.type in LAST and linked.entry.facade in {None, facade}
                        for linked in item.entries
                    ):
                        if not shown:
                            raise await self._explain(task_id)
                        return
                case Live():
                    if ended:
                        return
                case Gap(why=why):
                    raise StoreUnavailable(f"the stream cannot be followed on ({why.value})", "no")
                case _:
                    assert_never(item)

    async def _read_page(self, page: Page, facade: str, shard: Shard) -> Frames:
        found = [linked for linked in page.entries if linked.entry.facade == facade]
        for first in range(0, len(found), _AT_ONCE):
            yield [
                await self._read_frame(linked, page.cursor.epoch, shard)
                for linked in found[first : first + _AT_ONCE]
            ]

    async def _read_frame(self, linked: Linked, epoch: str, shard: Shard) -> StreamFrame:
        entry = linked.entry
        if entry.frame is not None:
            offset, length = entry.frame
            data = entry.data[offset : offset + length]
        else:
            data = orjson.dumps(await self.contents.read_frame(entry, shard))
        cursor = Cursor(epoch, entry.sequence, linked.chain)
        return StreamFrame(data, str(cursor), entry.data, forms=linked.memo)

    async def _explain(self, task_id: str) -> PasserelleError:
        ref = EntityRef(EntityKind.TASK, task_id)
        record = (await self.writes.load([ref]))[ref].record
        return explain_failure(record if isinstance(record, TaskRecord) else None)


def _cut_given(page: Page, since: int) -> tuple[Page, bool]:
    """The page up to where the task became somebody else's after ``since``, and whether it did."""
    for number, linked in enumerate(page.entries):
        entry = linked.entry
        if entry.type == EventType.TASK_UPDATED.value and entry.sequence > since:
            event = decode_event(entry.data)
            if isinstance(event.fact.payload, TaskUpdated) and event.fact.payload.new_owner:
                return replace(page, entries=page.entries[:number]), True
    return page, False


async def _prepend(first: StreamFrame, rest: Frames) -> Frames:
    frames = [first]
    # A reader may wait for hours, and the Task that it has seen long ago may be large.
    del first
    yield frames
    del frames
    async with aclosing(rest):
        async for later in rest:
            yield later


async def _only(frame: StreamFrame) -> Frames:
    yield [frame]


async def take_step(steps: AsyncIterator[Item], patience_s: float = _PATIENCE_S) -> Item | None:
    """The next item, or None at the end. A store that is away is waited for: the position has not moved.

    Raises:
        StoreUnavailable: it has been away for ``patience_s``.
    """
    loop = asyncio.get_running_loop()
    until_s: float | None = None
    while True:
        try:
            return await anext(steps, None)
        except StoreUnavailable:
            # Counted from the first failure: before it, the wait for an event may have been a long one.
            until_s = until_s or loop.time() + patience_s
            if loop.time() >= until_s:
                raise
        await asyncio.sleep(_RETRY_S)
