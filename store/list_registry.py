"""The registry of task lists: one sorted set per shard, by the time of the last row that the relay has carried.

A reader of the tasks of all owners merges their lists, and opens none without sufficiently new rows. The relay writes
the set in the call that carries the rows. A set that was never complete, such as that of a store of an earlier version,
has no mark, and is filled from the names of the lists before it is read.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from passerelle.core.chunks import in_chunks
from passerelle.core.frozen import frozen
from passerelle.core.ids import ALL_SHARDS, Shard, shard_of
from passerelle.core.index_changes import SESSIONS
from passerelle.core.ports.projections import ListedTasks
from passerelle.store import keys
from passerelle.store.connection import pack
from passerelle.store.key_scan import scan_keys
from passerelle.store.replies import as_scores

if TYPE_CHECKING:
    from collections.abc import Iterable

    from passerelle.store.nodes import Nodes

_WHOLE: Final = "~"
"""The member that marks the set of the shard as complete."""
_AT_ONCE: Final = 500


def name_list(owner: str, agent: str) -> str | None:
    """The member of a list; None for a list without tasks."""
    return None if agent == SESSIONS else f"{owner} {agent}"


@frozen
class ListRegistry:
    """Reads the sets of all shards."""

    nodes: Nodes

    async def read(self) -> list[ListedTasks]:
        """Every list, in one round trip to each primary.

        Raises:
            StoreUnavailable: a shard does not answer.
        """
        found = await asyncio.gather(*map(self._read_one, ALL_SHARDS))
        bare = [shard for shard, rows in zip(ALL_SHARDS, found, strict=True) if _WHOLE not in rows]
        if bare:
            await self._fill(bare)
            again = await asyncio.gather(*map(self._read_one, bare))
            found = [rows for rows in found if _WHOLE in rows] + again
        return [
            _read(name, at_ms) for rows in found for name, at_ms in rows.items() if name != _WHOLE
        ]

    async def forget(self, owner: str) -> None:
        """Removes the lists of an owner that have no rows any more."""
        shard = shard_of(owner)
        for name in await self._read_one(shard):
            whose, _, agent = name.partition(" ")
            if whose == owner:
                parts = keys.every_part_of(shard, owner, agent)
                [left] = await self.nodes.query_in_background(shard, pack("EXISTS", *parts))
                if left == 0:
                    await self.nodes.update(shard, pack("ZREM", keys.listed_tasks(shard), name))

    async def _read_one(self, shard: Shard) -> dict[str, int]:
        command = pack("ZRANGE", keys.listed_tasks(shard), 0, -1, "WITHSCORES")
        return dict(await self.nodes.query(shard, command, as_scores))

    async def _fill(self, bare: Iterable[Shard]) -> None:
        wanted = {shard: dict[str, int]() for shard in bare}
        for node in self.nodes.all:
            async for names in scan_keys(node, keys.EVERY_LIST):
                for key in names:
                    await self._look(key.decode(), wanted)
        for shard, rows in wanted.items():
            pairs = [part for name, at_ms in rows.items() for part in (at_ms, name)]
            for some in in_chunks(pairs, 2 * _AT_ONCE):
                await self.nodes.update(shard, pack("ZADD", keys.listed_tasks(shard), "GT", *some))
            await self.nodes.update(shard, pack("ZADD", keys.listed_tasks(shard), 0, _WHOLE))

    async def _look(self, key: str, wanted: dict[Shard, dict[str, int]]) -> None:
        place = keys.read_owner_list(key)
        shard = None if place is None else shard_of(place.owner)
        if place is None or shard not in wanted:
            return
        name = name_list(place.owner, place.agent)
        newest = await self.nodes.query(
            shard, pack("ZRANGE", key, 0, 0, "REV", "WITHSCORES"), as_scores
        )
        if name is not None and newest:
            rows = wanted[shard]
            rows[name] = max(rows.get(name, 0), newest[0][1])


def _read(name: str, at_ms: int) -> ListedTasks:
    owner, _, agent = name.partition(" ")
    return ListedTasks(owner, agent, at_ms)
