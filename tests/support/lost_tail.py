"""Removes the tail of a shard, as a failover to a lagging replica does: restores its keys to an earlier state.

DUMP and RESTORE on a running engine: sequences, versions and marks are those of the earlier moment, and connected
clients notice nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast

from passerelle.core.ids import Shard
from tests.support.engine import ask

_REMEMBER = """
local kept = {}
for _, name in ipairs(redis.call('KEYS', ARGV[1])) do
  kept[#kept + 1] = {name, redis.call('DUMP', name), redis.call('PTTL', name)}
end
return kept
"""
_BRING_BACK = """
for _, name in ipairs(redis.call('KEYS', ARGV[1])) do redis.call('DEL', name) end
for n = 1, #KEYS do redis.call('RESTORE', KEYS[n], ARGV[2 * n], ARGV[2 * n + 1]) end
return #KEYS
"""


@dataclass(slots=True)
class ShardSnapshot:
    """The keys of some shards at one moment: by shard, the name, content and remaining TTL in ms of each."""

    url: str
    dumped: dict[Shard, list[tuple[bytes, bytes, int]]]

    def restore(self) -> None:
        """Reverts everything that was written in these shards since, each shard atomically."""
        for shard, kept in self.dumped.items():
            names = [name for name, _, _ in kept]
            contents = [part for _, content, ttl_ms in kept for part in (ttl_ms, content)]
            script = (_BRING_BACK, len(names), *names, _pattern(shard), *contents)
            assert ask(self.url, "EVAL", *script) == len(names)


def take_snapshot(url: str, *shards: Shard) -> ShardSnapshot:
    """The current keys of some shards, each shard atomically, as a replica has them."""
    dumped: dict[Shard, list[tuple[bytes, bytes, int]]] = {}
    for shard in shards:
        kept = cast(
            "list[tuple[bytes, bytes, int]]", ask(url, "EVAL", _REMEMBER, 0, _pattern(shard))
        )
        dumped[shard] = [(name, content, max(ttl_ms, 0)) for name, content, ttl_ms in kept]
    return ShardSnapshot(url, dumped)


def _pattern(shard: Shard) -> str:
    return f"{{{shard.tag}}}:*"
