"""Lists of an owner, paged by time, newest first: tasks at one agent, and pending approvals.

The tasks of an owner at an agent are in one sorted set for open ones and one for each final state; an ended task stays
in the set of its final state.

Pending approvals have a hash with the copied views and a sorted set with the order; one script writes both. A store of
an earlier version has only the hash, and an instance of such a version may still write only the hash. So the head of
the inbox has the sequence up to which the set is complete. If that is not its end, or the sizes of the two differ, the
set is rebuilt from the hash before it is read.
"""

from __future__ import annotations

import asyncio
from functools import lru_cache
from typing import TYPE_CHECKING, Final, TypeAlias

import orjson

from passerelle.core.chunks import in_chunks
from passerelle.core.ids import shard_of
from passerelle.core.ports.log import StreamKind, StreamRef
from passerelle.core.wire.times import parse_ms
from passerelle.store import keys
from passerelle.store.coalescer import Coalescer
from passerelle.store.connection import pack
from passerelle.store.replies import as_hash, as_int, as_scores, as_sparse_list, as_texts

if TYPE_CHECKING:
    from collections.abc import Awaitable, Sequence

    from passerelle.core.ids import Shard
    from passerelle.core.ports.projections import IndexPart, IndexRow, RowPart
    from passerelle.core.wire.json import JsonObject
    from passerelle.store.nodes import Nodes


class OwnerIndex:
    """Reads lists, and writes rows that cannot wait for the relay."""

    def __init__(self, nodes: Nodes) -> None:
        self._nodes = nodes

    def post(self, row: IndexRow, within_s: float) -> Awaitable[bool]:
        """Sends a row together with a call of the same linger budget; the awaitable returns whether it was written.

        It is neither redirected nor retried: ``add`` is.
        """
        shard, name = _find_list(row.owner, row.agent, row.part)
        return self._nodes.primaries[shard.number].writes.send_unacknowledged(
            _write(row, name), within_s
        )

    async def add(self, row: IndexRow) -> None:
        """Writes a row. The later time wins.

        Raises:
            StoreUnavailable: it was not written.
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
        parts: Sequence[IndexPart],
    ) -> list[tuple[str, int]]:
        """Facade ids with their times, newest first, strictly below ``before`` = (time, id)."""
        shard = shard_of(owner)
        names = [keys.owner_index(shard, owner, agent, part) for part in parts]
        return await read_page(self._nodes, shard, names, before, limit)

    async def count(
        self, owner: str, agent: str, after_ms: int | None, parts: Sequence[IndexPart]
    ) -> int:
        """The number of rows, or of rows with a later time than ``after_ms``."""
        shard = shard_of(owner)
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
    """The list that a row is added to or removed from. Cached: an owner writes to the same few lists."""
    shard = shard_of(owner)
    return shard, keys.owner_index(shard, owner, agent, "open" if part == "gone" else part)


_AT_ONCE: Final = 1_000

PageEnd: TypeAlias = tuple[int, str]
"""A time in ms and a member: the end of the previous page."""
_Wanted: TypeAlias = tuple[str, int | None, tuple[int, str] | None]
"""An owner, a limit, and the position to start below."""


class PendingApprovals:
    """Reads lists of pending approvals by owner."""

    def __init__(self, nodes: Nodes) -> None:
        self._nodes = nodes
        self._pages: Coalescer[_Wanted, None, list[tuple[str, int]]] = Coalescer(self._list)

    async def list_newest(
        self, owner: str, limit: int | None, before: tuple[int, str] | None
    ) -> list[tuple[str, int]]:
        """At most ``limit`` pending approvals below a position, or all, with the times at which they were opened."""
        return list(await self._pages.call((owner, limit, before), None))

    async def _list(self, wanted: _Wanted, asked: list[None]) -> list[list[tuple[str, int]]]:
        """One read for all devices of a person that ask at once."""
        page, is_whole = await self._read(wanted)
        if not is_whole:
            await self._rebuild_order(wanted[0])
            page, _ = await self._read(wanted)
        return [page] * len(asked)

    async def _read(self, wanted: _Wanted) -> tuple[list[tuple[str, int]], bool]:
        """A page, and whether the order is complete."""
        owner, limit, before = wanted
        shard = shard_of(owner)
        order, copies = keys.inbox_order(shard, owner), keys.inbox_open(shard, owner)
        many = -1 if limit is None else limit
        found: list[tuple[str, int]] = []
        while True:
            page, ordered, copied, marks = await self._nodes.query_all(
                shard,
                pack(*_compose_range(order, before, many)),
                pack("ZCARD", order),
                pack("HLEN", copies),
                pack("HMGET", _head(owner), "seq", "ordered"),
            )
            rows = as_scores(page)
            found += _list_behind(rows, before)
            if limit is None or len(rows) < many or len(found) >= limit:
                end, whole = as_sparse_list(marks)
                return found[:limit], ordered == copied and (end or b"0") == (whole or b"0")
            before, many = _next_range(rows, before, many)

    async def _rebuild_order(self, owner: str) -> None:
        shard = shard_of(owner)
        order, copies = keys.inbox_order(shard, owner), keys.inbox_open(shard, owner)
        head = _head(owner)
        # Read before the hash: concurrent writes leave the mark behind, and the set is rebuilt once more.
        [end, flat, known] = await self._nodes.query_all(
            shard, pack("HGET", head, "seq"), pack("HGETALL", copies), pack("ZRANGE", order, 0, -1)
        )
        times = {name: _read_time(view) for name, view in as_hash(flat).items()}
        gone = [name for name in as_texts(known) if name not in times]
        entries = [part for name, at_ms in times.items() for part in (at_ms, name)]
        for part in in_chunks(entries, 2 * _AT_ONCE):
            await self._nodes.update(shard, pack("ZADD", order, "NX", *part))
        for names in in_chunks(gone, _AT_ONCE):
            await self._nodes.update(shard, pack("ZREM", order, *names))
        if isinstance(end, bytes):
            await self._nodes.update(shard, pack("HSET", head, "ordered", end))


def _head(owner: str) -> str:
    return keys.head(StreamRef(StreamKind.INBOX, owner))


def _read_time(view: bytes) -> int:
    """When an approval was opened, from its copied view; 0 if the view is damaged."""
    try:
        copied: JsonObject = orjson.loads(view)
        return parse_ms(str(copied["createdAt"]))
    except (ValueError, KeyError):
        return 0


async def read_page(
    nodes: Nodes, shard: Shard, names: Sequence[str], before: PageEnd | None, limit: int
) -> list[tuple[str, int]]:
    """Members with their times from all sets; one that moves meanwhile may be in two sets, and counts once.

    Raises:
        StoreUnavailable: the store does not answer.
    """
    pages = await asyncio.gather(*(_read_one(nodes, shard, name, before, limit) for name in names))
    if len(pages) == 1:
        return pages[0]
    rows = dict(sorted((row for page in pages for row in page), key=lambda row: row[1]))
    return sorted(rows.items(), key=lambda row: (row[1], row[0]), reverse=True)[:limit]


async def _read_one(
    nodes: Nodes, shard: Shard, name: str, before: PageEnd | None, limit: int
) -> list[tuple[str, int]]:
    found: list[tuple[str, int]] = []
    many = limit
    while len(found) < limit:
        page = await nodes.query(shard, pack(*_compose_range(name, before, many)), as_scores)
        found += _list_behind(page, before)
        if len(page) < many:
            break
        before, many = _next_range(page, before, many)
    return found[:limit]


def _compose_range(name: str, before: PageEnd | None, many: int) -> Sequence[str | int]:
    """The members of a set from a position on, including it."""
    top = "+inf" if before is None else str(before[0])
    return ("ZRANGE", name, top, "-inf", "BYSCORE", "REV", "LIMIT", 0, many, "WITHSCORES")


def _list_behind(rows: list[tuple[str, int]], before: PageEnd | None) -> list[tuple[str, int]]:
    """Drops rows already shown: several may have the time of the position."""
    return [row for row in rows if before is None or (row[1], row[0]) < before]


def _next_range(
    rows: list[tuple[str, int]], before: PageEnd | None, many: int
) -> tuple[PageEnd | None, int]:
    """Start of the next read: a position and not an offset, because rows may be removed between two reads."""
    last = (rows[-1][1], rows[-1][0])
    return (last, many) if before is None or last < before else (before, 2 * many)
