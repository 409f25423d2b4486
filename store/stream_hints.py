"""Hints of streams and shards, over the same connections as all other channels."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from passerelle.core.errors import StoreUnavailable
from passerelle.store import keys
from passerelle.store.hints import RedisHints

if TYPE_CHECKING:
    from collections.abc import Callable

    from passerelle.core.ids import Shard
    from passerelle.core.ports.log import StreamRef
    from passerelle.store.nodes import Nodes


@dataclass(slots=True)
class _SharedHints:
    """Listeners of one channel: a stored stream, and streams derived from it."""

    listeners: dict[StreamRef, Callable[[bytes], None]]
    settled: asyncio.Event = field(default_factory=asyncio.Event)
    """The subscription is confirmed, or failed."""
    failed: bool = False

    def deliver(self, raw: bytes) -> None:
        for on_hint in tuple(self.listeners.values()):
            on_hint(raw)


class StreamHints(RedisHints):
    """``core.ports.log.Hints``."""

    def __init__(self, nodes: Nodes) -> None:
        super().__init__(nodes)
        self._shared: dict[str, _SharedHints] = {}

    async def subscribe(self, stream: StreamRef, on_hint: Callable[[bytes], None]) -> None:
        """Returns once the subscription is confirmed.

        Raises:
            StoreUnavailable: not confirmed within 5 s; nothing is subscribed then.
            ValueError: the stream is subscribed already.
        """
        channel = keys.stream_hints(stream)
        shared = self._shared.get(channel)
        if shared is not None:
            await self._join(shared, stream, on_hint)
            return
        shared = self._shared[channel] = _SharedHints({stream: on_hint})
        try:
            await self.listen(stream.shard, channel, shared.deliver)
        except BaseException:
            shared.failed = True
            if self._shared.get(channel) is shared:
                del self._shared[channel]
            raise
        finally:
            shared.settled.set()

    async def _join(
        self, shared: _SharedHints, stream: StreamRef, on_hint: Callable[[bytes], None]
    ) -> None:
        if stream in shared.listeners:
            message = f"{stream.kind} {stream.id} is subscribed already"
            raise ValueError(message)
        shared.listeners[stream] = on_hint
        await shared.settled.wait()
        if shared.failed:
            raise StoreUnavailable("a subscription was not confirmed", "no")

    async def unsubscribe(self, stream: StreamRef) -> None:
        """Ends the hints of a stream."""
        channel = keys.stream_hints(stream)
        shared = self._shared.get(channel)
        if shared is not None:
            shared.listeners.pop(stream, None)
            if shared.listeners:
                return
            del self._shared[channel]
        await self.ignore(stream.shard, channel)

    async def subscribe_shard(self, shard: Shard, on_hint: Callable[[bytes], None]) -> None:
        """The same for a shard's epoch changes: ``s <epoch>``."""
        await self.listen(shard, keys.shard_hints(shard), on_hint)
