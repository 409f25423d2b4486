"""Following a task as its callers do: frames cut out of stored entries, through the one hub (I1, I3).

A reader never touches the peer: it reads what is stored, at its own pace, on any instance. A follower of a turn begins
where the turn begins; a follower of a task gets the Task first and then only what came after it.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import orjson

from passerelle.channels.cursor import Cursor
from passerelle.channels.position import Gap, Live, Page
from passerelle.channels.views import TaskView
from passerelle.core.batch import EntityKind, EntityRef
from passerelle.core.errors import (
    NotFound,
    StoreUnavailable,
    UnsupportedOperation,
)
from passerelle.core.event_type import EventType
from passerelle.core.ids import place
from passerelle.core.ports import StreamKind, StreamRef
from passerelle.core.status import ENDED
from passerelle.core.task_record import TaskRecord
from passerelle.gateway.control.failures import explain_failure

if TYPE_CHECKING:
    from passerelle.channels.hub import Hub
    from passerelle.channels.position import Item, Position
    from passerelle.core.commands import TurnAccepted
    from passerelle.core.errors import PasserelleError
    from passerelle.core.ids import Shard
    from passerelle.core.ports import Entry, EventLog
    from passerelle.gateway.control.contents import Contents
    from passerelle.gateway.control.writes import Writes

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


@dataclass(frozen=True, slots=True)
class StreamFrame:
    """One A2A StreamResponse as JSON bytes, and the cursor after it."""

    data: bytes
    cursor: str


Frames = AbstractAsyncContextManager[AsyncIterator[StreamFrame]]


@dataclass(slots=True)
class Following:
    """Opens followers."""

    writes: Writes
    log: EventLog
    hub: Hub
    contents: Contents

    @asynccontextmanager
    async def follow_turn(
        self, accepted: TurnAccepted
    ) -> AsyncGenerator[AsyncIterator[StreamFrame]]:
        """The frames of a task from its first one on, until it ends or answers with a Message."""
        stream = StreamRef(StreamKind.SESSION, accepted.session_id)
        start = await self._start(stream, await self._first(accepted) - 1)
        async with self.hub.open(stream, TaskView(accepted.task_id), start) as position:
            yield self._cut(position, accepted.facade, accepted.task_id)

    @asynccontextmanager
    async def follow_task(
        self, record: TaskRecord, facade: str
    ) -> AsyncGenerator[AsyncIterator[StreamFrame]]:
        """The Task as it stands, then what comes after it.

        Raises:
            UnsupportedOperation: the task has ended (A2A 1.0, section 3.1.6).
        """
        ref = EntityRef(EntityKind.TASK, record.task_id)
        held = (await self.writes.load([ref]))[ref]
        # The Task and the position behind it are read from one load, so that nothing older comes after the Task.
        record = held.record if isinstance(held.record, TaskRecord) else record
        if record.status in ENDED:
            raise UnsupportedOperation(f"the task has ended: {record.status}", status=record.status)
        stream = StreamRef(StreamKind.SESSION, record.session_id)
        start = await self._start(stream, record.last)
        task = await self.contents.read_task(record, held.fields)
        if task is None:
            raise NotFound("task", facade)
        async with self.hub.open(stream, TaskView(record.task_id), start) as position:
            first = StreamFrame(orjson.dumps({"task": task}), str(start))
            yield self._prepend(first, self._cut(position, facade, record.task_id))

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
        chain = entries[0].previous if entries else head.chain
        return Cursor(head.epoch, after if entries else head.sequence, chain)

    async def _cut(
        self, position: Position, facade: str, task_id: str
    ) -> AsyncIterator[StreamFrame]:
        shown = False
        while (item := await take_step(position)) is not None:
            match item:
                case Page(entries=entries):
                    for linked in entries:
                        entry = linked.entry
                        if entry.facade == facade:
                            shown = True
                            cursor = Cursor(item.cursor.epoch, entry.sequence, linked.chain)
                            yield StreamFrame(await self._frame(entry, place(task_id)), str(cursor))
                        if entry.type in _LAST:
                            if not shown:
                                raise await self._explain(task_id)
                            return
                case Live():
                    continue
                case Gap(why=why):
                    raise StoreUnavailable(f"the stream cannot be followed on ({why.value})", "no")

    async def _frame(self, entry: Entry, shard: Shard) -> bytes:
        if entry.frame is not None:
            offset, length = entry.frame
            return entry.data[offset : offset + length]
        return orjson.dumps(await self.contents.read_frame(entry, shard))

    async def _explain(self, task_id: str) -> PasserelleError:
        ref = EntityRef(EntityKind.TASK, task_id)
        record = (await self.writes.load([ref]))[ref].record
        return explain_failure(record if isinstance(record, TaskRecord) else None)

    @staticmethod
    async def _prepend(
        first: StreamFrame, rest: AsyncIterator[StreamFrame]
    ) -> AsyncIterator[StreamFrame]:
        yield first
        async for frame in rest:
            yield frame


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
