"""The heads of many shards, for whoever holds their duties."""

from __future__ import annotations

import asyncio
from functools import lru_cache
from typing import TYPE_CHECKING, cast

from passerelle.core.errors import StoreUnavailable
from passerelle.core.ids import SHARDS, Shard
from passerelle.core.ports.shard_poll import ShardHeads
from passerelle.store import keys
from passerelle.store.connection import pack

if TYPE_CHECKING:
    from collections.abc import Sequence

    from passerelle.store.nodes import Nodes


class RedisShardPoll:
    """``core.ports.shard_poll.ShardPoll`` over a server or cluster."""

    def __init__(self, nodes: Nodes) -> None:
        self._nodes = nodes

    async def read_heads(self, shards: Sequence[Shard]) -> list[ShardHeads | StoreUnavailable]:
        """Two commands for each shard and no script: this runs every second, whether or not there is anything."""
        due, feed = await asyncio.gather(
            self._nodes.lease_each([(shard, _pack_due(shard)) for shard in shards]),
            self._nodes.lease_each([(shard, _pack_feed(shard)) for shard in shards]),
        )
        return [
            next((one for one in found if isinstance(one, StoreUnavailable)), None)
            or _read_heads(cast("tuple[list[bytes], list[list[bytes]]]", found))
            for found in zip(due, feed, strict=True)
        ]


@lru_cache(SHARDS)
def _pack_due(shard: Shard) -> bytes:
    return pack("ZRANGE", keys.due(shard), 0, 0, "WITHSCORES")


@lru_cache(SHARDS)
def _pack_feed(shard: Shard) -> bytes:
    return pack("XREVRANGE", keys.feed(shard), "+", "-", "COUNT", 1)


def _read_heads(found: tuple[list[bytes], list[list[bytes]]]) -> ShardHeads:
    due, feed = found
    return ShardHeads(tuple(due), feed[0][0] if feed else b"")
