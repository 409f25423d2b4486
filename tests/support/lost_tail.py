"""The tail of a shard taken away, as a failover to a replica that lacks it does: its keys as they were before.

DUMP and RESTORE on a running engine: the sequences, versions and marks are those of the older moment, and nobody who is
connected notices anything.
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
    """The keys of some shards at one moment: by shard the name, content and rest of life in ms of each."""

    url: str
    dumped: dict[Shard, list[tuple[bytes, bytes, int]]]

    def restore(self) -> None:
        """Everything that was written in these shards since is gone; all of one shard at once."""
        for shard, kept in self.dumped.items():
            names = [name for name, _, _ in kept]
            contents = [part for _, content, ttl_ms in kept for part in (ttl_ms, content)]
            script = (_BRING_BACK, len(names), *names, _pattern(shard), *contents)
            assert ask(self.url, "EVAL", *script) == len(names)


def take_snapshot(url: str, *shards: Shard) -> ShardSnapshot:
    """What the keys of some shards hold now; all of one shard at once, as a replica has them."""
    dumped: dict[Shard, list[tuple[bytes, bytes, int]]] = {}
    for shard in shards:
        kept = cast(
            "list[tuple[bytes, bytes, int]]", ask(url, "EVAL", _REMEMBER, 0, _pattern(shard))
        )
        dumped[shard] = [(name, content, max(ttl_ms, 0)) for name, content, ttl_ms in kept]
    return ShardSnapshot(url, dumped)


def _pattern(shard: Shard) -> str:
    return f"{{{shard.tag}}}:*"
