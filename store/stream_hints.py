"""Hints of streams and shards, over the same connections as those of every other channel."""

from __future__ import annotations

from typing import TYPE_CHECKING

from passerelle.store import keys
from passerelle.store.hints import RedisHints

if TYPE_CHECKING:
    from collections.abc import Callable

    from passerelle.core.ids import Shard
    from passerelle.core.ports.log import StreamRef


class StreamHints(RedisHints):
    """``core.ports.log.Hints``."""

    async def subscribe(self, stream: StreamRef, on_hint: Callable[[bytes], None]) -> None:
        """Returns once the subscription is confirmed.

        Raises:
            StoreUnavailable: not confirmed within 5 s; nothing is subscribed then.
            ValueError: the stream is subscribed already.
        """
        await self.listen(stream.shard, keys.stream_hints(stream), on_hint)

    async def unsubscribe(self, stream: StreamRef) -> None:
        """Ends the hints of a stream."""
        await self.ignore(stream.shard, keys.stream_hints(stream))

    async def subscribe_shard(self, shard: Shard, on_hint: Callable[[bytes], None]) -> None:
        """The same for news of a shard: ``s <epoch>``."""
        await self.listen(shard, keys.shard_hints(shard), on_hint)
