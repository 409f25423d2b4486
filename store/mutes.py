"""Agents that a person wants no pushes for, each until a time; in the shard of the person."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from passerelle.core.ids import place
from passerelle.store import keys
from passerelle.store.connection import pack
from passerelle.store.replies import as_int, as_ms, as_scores
from passerelle.store.scripts import Script

if TYPE_CHECKING:
    from passerelle.store.nodes import Nodes

MOST: Final = 100
_MUTE: Final = Script("mute", as_int)


class RedisMutes:
    """Mutes by person, with times of the store; each ends by itself."""

    def __init__(self, nodes: Nodes) -> None:
        self._nodes = nodes

    async def mute(self, owner: str, peer: str, keep_ms: int) -> int:
        """Mutes an agent from now on, and says until when; the last word about an agent counts.

        Raises:
            StoreUnavailable: whether it is muted is not known.
        """
        return await self._write(owner, peer, keep_ms)

    async def unmute(self, owner: str, peer: str) -> None:
        """Ends a mute, if there is one. Raises StoreUnavailable."""
        await self._write(owner, peer, 0)

    async def list_muted(self, owner: str) -> dict[str, int]:
        """The agents that are muted now, with the times at which that ends, in ms.

        Raises:
            StoreUnavailable: nobody knows.
        """
        shard = place(owner)
        command = pack("ZRANGE", keys.mutes(shard, owner), 0, -1, "WITHSCORES")
        time, rows = await self._nodes.query_all(shard, pack("TIME"), command)
        now_ms = as_ms(time)
        return {peer: until_ms for peer, until_ms in as_scores(rows) if until_ms > now_ms}

    async def _write(self, owner: str, peer: str, keep_ms: int) -> int:
        shard = place(owner)
        return await self._nodes.run(
            _MUTE,
            shard,
            [keys.mutes(shard, owner)],
            {"peer": peer, "keep": keep_ms, "most": MOST},
        )
