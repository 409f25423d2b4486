"""Reads the context of a thread since its last boundary, from records and a bounded part of the stream (SNAP-6)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from passerelle.core.errors import StoreUnavailable
from passerelle.core.events import decode_event
from passerelle.core.frozen import frozen
from passerelle.core.ports.log import StreamKind, StreamRef
from passerelle.core.read_models.thread_context import show_thread_context
from passerelle.core.wire.codec import to_wire

if TYPE_CHECKING:
    from passerelle.control.read_models import Models
    from passerelle.control.turn_histories import TurnHistories
    from passerelle.core.commands import GetThreadContext
    from passerelle.core.events import Event
    from passerelle.core.ids import Shard
    from passerelle.core.ports.blobs import Blobs
    from passerelle.core.principal import Principal
    from passerelle.core.session.thread import ThreadRecord
    from passerelle.core.wire.json import JsonObject

LOOKED_AT: Final = 2_048
"""Events after the boundary that are searched for warnings, newest ones."""
_PAGE: Final = 512


@frozen
class ThreadContexts:
    """Reads contexts for their owners."""

    models: Models
    histories: TurnHistories
    blobs: Blobs

    async def read(self, principal: Principal, query: GetThreadContext) -> JsonObject:
        """The context of a thread of the caller.

        Raises:
            NotFound: unknown, or another principal's: the two look the same.
        """
        found = await self.histories.find(principal, query.thread_id)
        thread = found.record
        _, head, archive = await self.models.find_session(principal, thread.session_id)
        covers = thread.compactions[-1].covers if thread.compactions else 0
        begin = max(covers, head.sequence - LOOKED_AT)
        lost: list[str] = []
        if head.first > 1:
            lost.append(f"facts before {head.first} are not in the stream any more")
        if begin > covers:
            lost.append(f"facts {covers + 1} to {begin} were not read")
        if archive is not None:
            lost.append(f"nothing is in memory: the session is in the archive as {archive}")
        events = await self._read_events(thread, begin, head.sequence)
        text = await self._read_text(found.ref.shard, thread)
        return to_wire(show_thread_context(thread, events, head.sequence, text, lost))

    async def _read_events(self, thread: ThreadRecord, after: int, last: int) -> list[Event]:
        stream, found = StreamRef(StreamKind.SESSION, thread.session_id), list["Event"]()
        while after < last:
            page = await self.histories.writes.log.read_page(
                stream, after, min(_PAGE, last - after)
            )
            if not page:
                break
            found += [decode_event(one.data) for one in page if one.sequence <= last]
            after = page[-1].sequence
        return found

    async def _read_text(self, shard: Shard, thread: ThreadRecord) -> str | None:
        """The last summary; None if there is none, or it cannot be read now."""
        if not thread.compactions or thread.compactions[-1].summary.blob is None:
            return None
        try:
            content = await self.blobs.get(shard, thread.compactions[-1].summary.blob)
        except StoreUnavailable:
            return None
        return None if content is None else content.decode()
