"""Text on its way: a channel for each session, beside the hints of what is stored.

A message is the envelope of one ``model.delta``. Publishing answers how many instances listen, which is what tells a
driver whether anybody wants more of it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from passerelle.core.errors import InvalidInput
from passerelle.core.events import decode_event
from passerelle.core.payloads.run import ModelDelta
from passerelle.core.ports.deltas import Delta
from passerelle.store import keys
from passerelle.store.connection import pack
from passerelle.store.replies import as_int

if TYPE_CHECKING:
    from collections.abc import Callable

    from passerelle.core.events import EncodedEvent
    from passerelle.core.ports.log import StreamRef
    from passerelle.store.hints import RedisHints
    from passerelle.store.nodes import Nodes


class RedisDeltas:
    """``core.ports.deltas.Deltas``."""

    def __init__(self, nodes: Nodes, hints: RedisHints) -> None:
        self._nodes = nodes
        self._hints = hints

    async def publish(self, stream: StreamRef, event: EncodedEvent) -> int:
        """Publishes one delta once, and says how many instances listen.

        Raises:
            StoreUnavailable: whether it was published is not known; nothing is tried again.
        """
        command = pack("SPUBLISH", keys.stream_deltas(stream), b"{" + event.body)
        return as_int(await self._nodes.write(stream.shard, command))

    async def listen(self, stream: StreamRef, on_delta: Callable[[Delta], None]) -> None:
        """Returns once each further delta of the stream is told.

        Raises:
            StoreUnavailable: not confirmed within 5 s; nobody listens then.
            ValueError: somebody listens to the stream already.
        """

        def hear(raw: bytes) -> None:
            delta = read_delta(raw)
            if delta is not None:
                on_delta(delta)

        await self._hints.listen(stream.shard, keys.stream_deltas(stream), hear)

    async def ignore(self, stream: StreamRef) -> None:
        """Ends what ``listen`` began."""
        await self._hints.ignore(stream.shard, keys.stream_deltas(stream))


def read_delta(raw: bytes) -> Delta | None:
    """The delta of a published envelope; None for what is none: text that may be lost is no reason to stop hearing."""
    try:
        said = decode_event(raw).fact.payload
    except InvalidInput:
        return None
    return Delta(said.block, said.at, said.text) if isinstance(said, ModelDelta) else None
