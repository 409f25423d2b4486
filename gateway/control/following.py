"""Following a task as its callers do: frames cut out of stored entries, through the one hub (I1, I3).

A reader never touches the peer: it reads what is stored, at its own pace, on any instance. A follower of a turn begins
where the turn begins; a follower of a task gets the Task first and then only what came after it.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, TypeVar

import orjson

from passerelle.channels.cursor import Cursor, parse_cursor
from passerelle.channels.position import Gap, Live, Page
from passerelle.channels.views import TaskView
from passerelle.core.batch import EntityKind, EntityRef
from passerelle.core.errors import (
    BadCursor,
    NotFound,
    StoreUnavailable,
    UnsupportedOperation,
)
from passerelle.core.event_type import EventType
from passerelle.core.ids import place
from passerelle.core.ports import StreamKind, StreamRef
from passerelle.core.record import change
from passerelle.core.status import ENDED
from passerelle.core.task_record import TaskRecord
from passerelle.gateway.control.failures import explain_failure
from passerelle.gateway.control.stream_frame import Followed, StreamFrame

if TYPE_CHECKING:
    from collections.abc import Mapping

    from passerelle.a2a_mapping.resume import ResumeWish
    from passerelle.channels.cursor import Linked
    from passerelle.channels.hub import Hub
    from passerelle.channels.position import Item
    from passerelle.core.commands import TurnAccepted
    from passerelle.core.errors import PasserelleError
    from passerelle.core.ids import Shard
    from passerelle.core.ports import EventLog
    from passerelle.gateway.control.contents import Contents
    from passerelle.gateway.control.writes import Writes

T = TypeVar("T")
_PATIENCE_S: Final = 60.0
_RETRY_S: Final = 0.25
_LAST: Final = frozenset(
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

    @asynccontextmanager
    async def follow_turn(self, accepted: TurnAccepted) -> AsyncGenerator[Followed]:
        """The frames of a task from its first one on, until it ends or answers with a Message."""
        stream = StreamRef(StreamKind.SESSION, accepted.session_id)
        start = await self._start(stream, await self._first(accepted) - 1)
        async with self.hub.open(stream, TaskView(accepted.task_id), start) as position:
            yield Followed(self._cut(position, accepted.facade, accepted.task_id))

    @asynccontextmanager
    async def follow_task(
        self, record: TaskRecord, facade: str, wish: ResumeWish | None = None
    ) -> AsyncGenerator[Followed]:
        """The Task as it stands, then what comes after it; or, after the cursor of ``wish``, what was missed first.

        A cursor that does not hold is answered with the Task, and never with a part of what was missed (I8).

        Raises:
            UnsupportedOperation: the task has ended, and no cursor was sent (A2A 1.0, section 3.1.6).
        """
        ref = EntityRef(EntityKind.TASK, record.task_id)
        held = (await self.writes.load([ref]))[ref]
        # The Task and the position behind it are read from one load, so that nothing older comes after the Task.
        record = held.record if isinstance(held.record, TaskRecord) else record
        if wish is None and record.status in ENDED:
            raise UnsupportedOperation(f"the task has ended: {record.status}", status=record.status)
        async with AsyncExitStack() as stack:
            if wish is not None:
                resumed = await self._resume(stack, record, facade, wish)
                if resumed is not None:
                    yield Followed(resumed, resumed=True)
                    return
            begun = await self._begin(stack, record, held.fields, facade)
            yield Followed(begun, resumed=None if wish is None else False)

    async def _begin(
        self,
        stack: AsyncExitStack,
        record: TaskRecord,
        fields: Mapping[str, bytes],
        facade: str,
    ) -> AsyncIterator[StreamFrame]:
        stream = StreamRef(StreamKind.SESSION, record.session_id)
        start = await self.locate(record)
        task = await self.contents.read_task(record, fields)
        if task is None:
            raise NotFound("task", facade)
        first = StreamFrame(orjson.dumps({"task": task}), str(start), seen=record.generation)
        if record.status in ENDED:
            return _only(first)
        opening = self.hub.open(stream, TaskView(record.task_id), start)
        position = await stack.enter_async_context(opening)
        return _prepend(first, self._cut(position, facade, record.task_id, shown=True))

    async def _resume(
        self, stack: AsyncExitStack, record: TaskRecord, facade: str, wish: ResumeWish
    ) -> AsyncIterator[StreamFrame] | None:
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
        frames = self._cut(
            _prepend(first, position),
            facade,
            record.task_id,
            shown=True,
            ended=record.status in ENDED,
        )
        if not wish.snapshot:
            return frames
        head = await self.log.read_head(stream)
        if head is None or head.first > record.first:
            return None
        return await self._precede(record, cursor, frames)

    async def _precede(
        self, record: TaskRecord, cursor: Cursor, frames: AsyncIterator[StreamFrame]
    ) -> AsyncIterator[StreamFrame]:
        """The Task as it stood at the cursor before ``frames``; only these, where there was none yet."""
        then = await self.contents.fold_task(change(record, last=min(record.last, cursor.sequence)))
        if then.task is None:
            return frames
        first = StreamFrame(orjson.dumps({"task": then.task}), str(cursor), seen=then.frames)
        return _prepend(first, frames)

    async def locate(self, record: TaskRecord) -> Cursor:
        """The position behind everything that a record contains."""
        return await self._start(StreamRef(StreamKind.SESSION, record.session_id), record.last)

    async def _first(self, accepted: TurnAccepted) -> int:
        ref = EntityRef(EntityKind.TASK, accepted.task_id)
        record = (await self.writes.load([ref]))[ref].record
        if not isinstance(record, TaskRecord):
            raise NotFound("task", accepted.facade)
        return record.first

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
        steps: AsyncIterator[Item],
        facade: str,
        task_id: str,
        *,
        shown: bool = False,
        ended: bool = False,
    ) -> AsyncIterator[StreamFrame]:
        """The frames of a facade task up to its end. ``ended``: there is nothing to wait for behind what is stored."""
        while (item := await take_step(steps)) is not None:
            match item:
                case Page(entries=entries):
                    for linked in entries:
                        entry = linked.entry
                        if entry.facade == facade:
                            shown = True
                            yield await self._read_frame(linked, item.cursor.epoch, place(task_id))
                        if entry.type in _LAST:
                            if not shown:
                                raise await self._explain(task_id)
                            return
                case Live():
                    if ended:
                        return
                case Gap(why=why):
                    raise StoreUnavailable(f"the stream cannot be followed on ({why.value})", "no")

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


async def _prepend(first: T, rest: AsyncIterator[T]) -> AsyncIterator[T]:
    yield first
    async for one in rest:
        yield one


async def _only(first: T) -> AsyncIterator[T]:
    yield first


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
