"""The list of an owner's tasks at one agent, parted by where they stand: who asks for a state reads its part alone.

An ended task stands in the part of its end for good; all others are in the one of open tasks.
"""

from __future__ import annotations

import asyncio
from functools import lru_cache
from typing import TYPE_CHECKING

from passerelle.core.ids import place
from passerelle.store import keys
from passerelle.store.connection import pack
from passerelle.store.replies import as_int
from passerelle.store.sorted_pages import read_page

if TYPE_CHECKING:
    from collections.abc import Awaitable, Sequence

    from passerelle.core.ids import Shard
    from passerelle.core.ports.projections import IndexRow, Part, RowPart
    from passerelle.store.nodes import Nodes


class OwnerIndex:
    """Reads lists, and writes the row that cannot wait for the relay."""

    def __init__(self, nodes: Nodes) -> None:
        self._nodes = nodes

    def post(self, row: IndexRow, within_s: float) -> Awaitable[bool]:
        """Sends a row beside a call of the same caller, with as much time; to be awaited: whether it was written.

        Nobody looks for another node for it: ``add`` does.
        """
        shard, name = _find_list(row.owner, row.agent, row.part)
        return self._nodes.primaries[shard.number].writes.send_unacknowledged(
            _write(row, name), within_s
        )

    async def add(self, row: IndexRow) -> None:
        """Writes a row. The later time wins.

        Raises:
            StoreUnavailable: nobody takes it.
        """
        shard, name = _find_list(row.owner, row.agent, row.part)
        command = _write(row, name)
        await self._nodes.update(shard, command)

    async def read(
        self,
        owner: str,
        agent: str,
        before: tuple[int, str] | None,
        limit: int,
        parts: Sequence[Part],
    ) -> list[tuple[str, int]]:
        """Facade ids with their times, newest first, strictly below ``before`` = (time, id)."""
        shard = place(owner)
        names = [keys.owner_index(shard, owner, agent, part) for part in parts]
        return await read_page(self._nodes, shard, names, before, limit)

    async def count(
        self, owner: str, agent: str, after_ms: int | None, parts: Sequence[Part]
    ) -> int:
        """How many there are, or how many with a later time than ``after_ms``."""
        shard = place(owner)
        low = "-inf" if after_ms is None else f"({after_ms}"
        counts = await asyncio.gather(
            *(
                self._nodes.query(
                    shard,
                    pack("ZCOUNT", keys.owner_index(shard, owner, agent, part), low, "+inf"),
                    as_int,
                )
                for part in parts
            )
        )
        return sum(counts)


def _write(row: IndexRow, name: str) -> bytes:
    if row.part == "gone":
        return pack("ZREM", name, row.facade)
    return pack("ZADD", name, "GT", row.at_ms, row.facade)


@lru_cache(4096)
def _find_list(owner: str, agent: str, part: RowPart) -> tuple[Shard, str]:
    """Where a row stands, or is taken out: an owner has as many lists as agents, and writes to them all the time."""
    shard = place(owner)
    return shard, keys.owner_index(shard, owner, agent, "open" if part == "gone" else part)
