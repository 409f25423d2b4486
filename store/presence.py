"""Which devices of a principal are there: words that hold for a minute, in the shard of the principal."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from passerelle.core.codec import from_bytes, to_bytes
from passerelle.core.ids import place
from passerelle.core.ports.channels import Present
from passerelle.core.presence import Presence
from passerelle.store import keys
from passerelle.store.connection import pack
from passerelle.store.replies import as_hash, as_ms
from passerelle.store.scripts import Script

if TYPE_CHECKING:
    from passerelle.store.nodes import Nodes

KEEP_MS: Final = 60_000
_PRESENCE: Final = Script("presence", lambda reply: reply == b"ok")


class RedisPresences:
    """``core.ports.channels.Presences`` over a server or cluster; times are those of the store."""

    def __init__(self, nodes: Nodes, keep_ms: int = KEEP_MS) -> None:
        self._nodes = nodes
        self._keep_ms = keep_ms

    async def say(self, owner: str, generation: int, presence: Presence) -> bool:
        """Notes the word of a connection; False where a newer one of the channel has spoken.

        Raises:
            StoreUnavailable: whether it is noted is not known.
        """
        return await self._write(owner, presence.channel_id, generation, to_bytes(presence))

    async def withdraw(self, owner: str, channel: str, generation: int) -> None:
        """A connection has ended, and its word with it.

        Raises:
            StoreUnavailable: the word goes by itself.
        """
        await self._write(owner, channel, generation, b"")

    async def list_present(self, owner: str) -> tuple[Present, ...]:
        """The devices of one principal that have spoken within the last minute, by the ids of their channels.

        Raises:
            StoreUnavailable: nobody knows who is there.
        """
        shard = place(owner)
        time, rows = await self._nodes.query_all(
            shard, pack("TIME"), pack("HGETALL", keys.presence(shard, owner))
        )
        now_ms, words = as_ms(time), as_hash(rows)
        found = (_read_word(words[channel], now_ms) for channel in sorted(words))
        return tuple(one for one in found if one.left_ms > 0)

    async def _write(self, owner: str, channel: str, generation: int, word: bytes) -> bool:
        shard = place(owner)
        return await self._nodes.run(
            _PRESENCE,
            shard,
            [keys.presence(shard, owner), keys.link_hints(shard, owner)],
            {
                "channel": channel,
                "gen": str(generation),
                "keep": self._keep_ms,
                "gone": not word,
            },
            [word],
        )


def _read_word(row: bytes, now_ms: int) -> Present:
    until, _, word = row.split(b"|", 2)
    return Present(from_bytes(Presence, word, newer=True), int(until) - now_ms)
