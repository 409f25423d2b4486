"""Reads the turns of a thread from its stream, page by page.

Only one page is in memory. The cost grows with the length of the session, so this is for rare commands, and for no
read.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, TypeVar

from passerelle.core.batch import EntityKind, EntityRef
from passerelle.core.errors import UnsupportedOperation, WriteConflict
from passerelle.core.events import decode_event
from passerelle.core.frozen import frozen
from passerelle.core.ports.log import StreamKind, StreamRef
from passerelle.core.session.thread import ThreadRecord
from passerelle.core.session.turn_history import FilteredThread, TurnHistory
from passerelle.runtime.records.ownership import load_own
from passerelle.runtime.records.writes import MAX_TRIES

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

    from passerelle.core.events import Event
    from passerelle.core.payloads.history import ThreadState
    from passerelle.core.principal import Principal
    from passerelle.runtime.records.writes import Writes

PAGE: Final = 512
BOUNDARY: Final = "bd"
"""The id prefix of boundaries: places in a stream where a thread starts anew."""
_Changed = TypeVar("_Changed")


class ThreadMovedError(Exception):
    """The thread has changed since its turns were read."""


@frozen
class FoundThread:
    """A thread of a caller as it was read: a decision about it is valid for this version only."""

    ref: EntityRef
    record: ThreadRecord
    version: int


@frozen
class TurnHistories:
    """Reads turn histories."""

    writes: Writes

    async def find(self, principal: Principal, thread_id: str) -> FoundThread:
        """A thread of the caller.

        Raises:
            NotFound: unknown, or another principal's: the two look the same.
        """
        record, held = await load_own(self.writes, ThreadRecord, principal, thread_id)
        ref = EntityRef(EntityKind.THREAD, thread_id)
        return FoundThread(ref, record, held.stamp.version)

    async def change(
        self,
        principal: Principal,
        thread: FoundThread,
        change: Callable[[FoundThread], Awaitable[_Changed]],
    ) -> _Changed:
        """Runs a change of a thread, again if the thread has changed meanwhile.

        Raises:
            WriteConflict: it changed each time.
        """
        for tries in range(MAX_TRIES):
            try:
                return await change(thread)
            except ThreadMovedError:
                await self.writes.pause_before_retry(tries)
                thread = await self.find(principal, thread.ref.id)
        raise WriteConflict("the thread was changed concurrently too often; try again")

    async def read_turns(self, thread: ThreadRecord) -> tuple[TurnHistory, int]:
        """The turns of a thread, and the sequence up to which its stream was read.

        Raises:
            UnsupportedOperation: the beginning of the stream is no longer kept.
        """
        history, last = TurnHistory(thread.thread_id), 0
        async for event in self._read(thread.session_id):
            if not last and event.sequence > 1:
                message = f"facts before {event.sequence} are not in the stream any more"
                raise UnsupportedOperation(message, why="facts_missing")
            history.add(event)
            last = event.sequence
        return history, last

    async def restore(
        self, thread: ThreadRecord, without: frozenset[str], last: int
    ) -> ThreadState:
        """The state of a thread at the sequence ``last`` without some tasks, and summaries up to some turns."""
        standing = FilteredThread(thread.thread_id, without)
        async for event in self._read(thread.session_id, last):
            standing.add(event)
        return standing.state

    async def _read(self, session_id: str, last: int | None = None) -> AsyncIterator[Event]:
        stream, after = StreamRef(StreamKind.SESSION, session_id), 0
        while last is None or after < last:
            page = await self.writes.log.read_page(stream, after, PAGE)
            if not page:
                return
            for entry in page:
                if last is not None and entry.sequence > last:
                    return
                yield decode_event(entry.data)
            after = page[-1].sequence
