"""What agents were seen to do, by name and card: a few words for each, learned once, kept for a season."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from passerelle.core.ids import derive_shard
from passerelle.store import keys
from passerelle.store.connection import pack
from passerelle.store.replies import as_texts

if TYPE_CHECKING:
    from passerelle.store.nodes import Nodes

KEPT_MS: Final = 90 * 24 * 3_600_000


class RedisHabits:
    """Sets of words over a server or cluster, each in the shard of its agent's name."""

    def __init__(self, nodes: Nodes) -> None:
        self._nodes = nodes

    async def add(self, peer: str, card: str, habit: str) -> None:
        """Stores that a peer with this card was seen to do something; said again, it changes nothing.

        Raises:
            StoreUnavailable: it is not known to be stored.
        """
        shard = derive_shard("habits", peer)
        key = keys.habits(shard, peer, card)
        await self._nodes.update(shard, pack("SADD", key, habit))
        await self._nodes.update(shard, pack("PEXPIRE", key, KEPT_MS))

    async def read(self, peer: str, card: str) -> frozenset[str]:
        """All that is known.

        Raises:
            StoreUnavailable: nobody can tell.
        """
        shard = derive_shard("habits", peer)
        command = pack("SMEMBERS", keys.habits(shard, peer, card))
        return frozenset(await self._nodes.query(shard, command, as_texts))
