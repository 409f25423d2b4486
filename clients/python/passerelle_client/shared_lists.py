"""Lists of shared tasks: one per owner, ordered by status time, the newest first.

A list is in another hash slot than its tasks, so after a crash it can be outdated. Reads repair it: a row without a
task is removed, and a row that is older than its task is moved.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, TypeAlias, cast

from passerelle.store.connection import pack
from passerelle.store.failures import retry
from passerelle.store.replies import as_scores

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

    from passerelle.client.shared_space import SharedSpace
    from passerelle.core.ids import Shard
    from passerelle.store.connection import RespValue
    from passerelle.store.nodes import Nodes

_CHUNK: Final = 256

ListPlace: TypeAlias = tuple[int, str]
"""The position of a task in its owner's list: status time in microseconds, id. The highest comes first."""


@dataclass(frozen=True, slots=True)
class ListFilter:
    """A filter. Empty texts and 0 match everything."""

    context: str = ""
    state: str = ""
    since_us: int = 0

    @property
    def is_all(self) -> bool:
        """Returns whether the filter needs no field of the tasks."""
        return not self.context and not self.state


@dataclass(frozen=True, slots=True)
class ListedPage:
    """A page. ``total`` counts all pages; ``last`` is the position to continue from, None at the end."""

    tasks: list[bytes]
    total: int
    last: ListPlace | None


@dataclass(frozen=True, slots=True)
class _Row:
    place: ListPlace
    context: str
    state: str


@dataclass(frozen=True, slots=True)
class SharedLists:
    """The lists of one space. ``owner`` is any text; its digest is stored."""

    nodes: Nodes
    space: SharedSpace

    async def read(
        self, owner: str, wanted: ListFilter, before: ListPlace | None, size: int
    ) -> ListedPage:
        """Reads a page behind the position ``before``. A filter by context or state reads every task of the owner."""
        total, places = 0, list[ListPlace]()
        start = before if wanted.is_all else None
        async for rows in self._scan(owner, start, wanted.since_us):
            fitting = [row for row in await self._look(owner, rows) if _fits(row, wanted)]
            total += len(fitting)
            places += [row.place for row in fitting if before is None or row.place < before]
            if wanted.is_all and len(places) > size:
                break
        if wanted.is_all:
            total = await self._count(owner, wanted.since_us)
        shown = places[:size]
        stored = await self._read_all([task_id for _, task_id in shown], "d")
        last = shown[-1] if len(places) > size else None
        return ListedPage([task for (task,) in stored if task is not None], total, last)

    async def place(self, task_id: str, owner: str, time_us: int) -> None:
        """Adds a task to its owner's list, or moves it forward; never moves it back."""
        shard, index = self.space.locate_list(owner)
        command = pack("ZADD", index, "GT", time_us, task_id)
        await retry(lambda: self.nodes.write(shard, command))

    async def forget(self, owner: str, task_ids: Sequence[str]) -> None:
        """Removes tasks from the list."""
        shard, index = self.space.locate_list(owner)
        command = pack("ZREM", index, *task_ids)
        await retry(lambda: self.nodes.write(shard, command))

    async def _count(self, owner: str, since_us: int) -> int:
        shard, index = self.space.locate_list(owner)
        command = pack("ZCOUNT", index, since_us or "-inf", "+inf")
        (reply,) = await retry(lambda: self.nodes.read(shard, command))
        return cast("int", reply)

    async def _scan(
        self, owner: str, before: ListPlace | None, since_us: int
    ) -> AsyncIterator[list[ListPlace]]:
        """Yields the rows of a list in order, in chunks; a row that moves meanwhile is not yielded twice."""
        limit = _CHUNK
        while True:
            rows = await self._read_rows(owner, before, since_us, limit)
            fresh = [row for row in rows if before is None or row < before]
            if fresh:
                yield fresh
                before = fresh[-1]
            if len(rows) < limit:
                return
            # many tasks with one status time: skip those already yielded
            limit = _CHUNK if fresh else limit * 2

    async def _read_rows(
        self, owner: str, before: ListPlace | None, since_us: int, limit: int
    ) -> list[ListPlace]:
        shard, index = self.space.locate_list(owner)
        top = "+inf" if before is None else before[0]
        bounds = (top, since_us or "-inf", "BYSCORE", "REV", "LIMIT", 0, limit)
        command = pack("ZRANGE", index, *bounds, "WITHSCORES")
        (reply,) = await retry(lambda: self.nodes.read(shard, command))
        return [(time_us, task_id) for task_id, time_us in as_scores(reply)]

    async def _look(self, owner: str, places: Sequence[ListPlace]) -> list[_Row]:
        """Reads the fields that a list needs; repairs rows that a crash left outdated."""
        fields = await self._read_all([task_id for _, task_id in places], "o", "c", "st", "ts")
        mine, gone, digest = list[_Row](), list[str](), self.space.digest(owner).encode()
        for place, (found, context, state, time_us) in zip(places, fields, strict=True):
            if found != digest:
                gone.append(place[1])
                continue
            if int(time_us or 0) > place[0]:
                await self.place(place[1], owner, int(time_us or 0))
            mine.append(_Row(place, (context or b"").decode(), (state or b"").decode()))
        if gone:
            await self.forget(owner, gone)
        return mine

    async def _read_all(self, task_ids: Sequence[str], *names: str) -> list[list[bytes | None]]:
        """Reads fields of many tasks, in order: one round trip per shard."""
        by_shard: dict[Shard, list[str]] = {}
        for task_id in task_ids:
            by_shard.setdefault(self.space.locate(task_id).shard, []).append(task_id)

        async def read(shard: Shard, mine: Sequence[str]) -> list[RespValue]:
            commands = [pack("HMGET", self.space.locate(one).task, *names) for one in mine]
            return await retry(lambda: self.nodes.read(shard, *commands))

        answers = await asyncio.gather(*(read(shard, mine) for shard, mine in by_shard.items()))
        found = {
            task_id: cast("list[bytes | None]", reply)
            for mine, replies in zip(by_shard.values(), answers, strict=True)
            for task_id, reply in zip(mine, replies, strict=True)
        }
        return [found[task_id] for task_id in task_ids]


def _fits(row: _Row, wanted: ListFilter) -> bool:
    return wanted.context in {"", row.context} and wanted.state in {"", row.state}
