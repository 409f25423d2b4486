"""The due set: deadlines and owed acts of a shard (I9)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, cast

from passerelle.core.ports import Claimed, DueRow
from passerelle.store import keys
from passerelle.store.scripts import read_script

if TYPE_CHECKING:
    from passerelle.core.ids import Shard
    from passerelle.store.nodes import Nodes

LEASE_ROWS: Final = "own:"


class RedisDueRows:
    """``core.ports.DueRows`` over a server or cluster."""

    def __init__(self, nodes: Nodes) -> None:
        self._nodes = nodes

    async def claim(self, shard: Shard, limit: int, visibility_ms: int, hold: str = "") -> Claimed:
        """Claims up to ``limit`` rows that are due, but none that begins with ``hold``.

        Never tried again here: a claim whose reply was lost comes due again after the visibility time.
        ``hold`` is ``LEASE_ROWS`` for one lease after an outage, so that living owners extend first.
        """
        packed = read_script("claim_due").pack_call(
            [keys.due(shard)], {"limit": limit, "visibility": visibility_ms, "hold": hold}
        )
        reply = cast("list[bytes]", await self._nodes.write(shard, packed))
        now, following, *flat = (text.decode() for text in reply)
        return Claimed(
            rows=tuple(
                DueRow(member, token) for member, token in zip(flat[::2], flat[1::2], strict=True)
            ),
            now_ms=int(now),
            next_ms=int(float(following)) if following else None,
        )
