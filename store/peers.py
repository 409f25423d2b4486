"""Stored facts about calls to agents: observed behaviour, by name and card, and the callbacks of runs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from passerelle.core.frozen import frozen
from passerelle.core.ids import derive_shard, shard_of
from passerelle.store import keys
from passerelle.store.connection import pack
from passerelle.store.replies import as_bytes, as_texts

if TYPE_CHECKING:
    from passerelle.store.nodes import Nodes

KEPT_MS: Final = 90 * 24 * 3_600_000


class RedisHabits:
    """Sets of words over a server or cluster, each in the shard of its agent's name."""

    def __init__(self, nodes: Nodes) -> None:
        self._nodes = nodes

    async def add(self, peer: str, card: str, habit: str) -> None:
        """Stores that a peer with this card was seen to do something; idempotent.

        Raises:
            StoreUnavailable: it is not known to be stored.
        """
        shard = derive_shard("habits", peer)
        key = keys.habits(shard, peer, card)
        await self._nodes.update(shard, pack("SADD", key, habit))
        await self._nodes.update(shard, pack("PEXPIRE", key, KEPT_MS))

    async def read(self, peer: str, card: str) -> frozenset[str]:
        """All stored behaviour of a peer with this card.

        Raises:
            StoreUnavailable: the store does not answer.
        """
        shard = derive_shard("habits", peer)
        command = pack("SMEMBERS", keys.habits(shard, peer, card))
        return frozenset(await self._nodes.query(shard, command, as_texts))


_SEPARATOR: Final = " "


@frozen
class Callback:
    """The task of the run, and the SHA-256 of nonce and token in hex."""

    task: str
    nonce: str
    token: str


class RedisCallbacks:
    """Callbacks over a server or cluster."""

    def __init__(self, nodes: Nodes) -> None:
        self._nodes = nodes

    async def keep(self, run: str, callback: Callback, ttl_ms: int) -> None:
        """Stores the callback of a run."""
        text = _SEPARATOR.join((callback.task, callback.nonce, callback.token))
        packed = pack("SET", keys.callback(shard_of(run), run), text, "PX", ttl_ms)
        await self._nodes.update(shard_of(run), packed)

    async def find(self, run: str) -> Callback | None:
        """The callback of a run."""
        shard = shard_of(run)
        found = await self._nodes.query(shard, pack("GET", keys.callback(shard, run)), as_bytes)
        if found is None:
            return None
        return Callback(*found.decode().split(_SEPARATOR))
