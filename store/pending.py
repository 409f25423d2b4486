"""The pending questions of a person, the newest first: a page costs what it shows, however many more there are.

The hash has what was copied of each, the sorted set their order; one script writes both. A store of an earlier version
has the hash alone, and one of its instances beside ours writes it alone. So the head of the inbox says up to where the
set is whole: where that is not its end, or the two differ in number, the set is made again from the hash before it is
read.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, TypeAlias

import orjson

from passerelle.core.ids import place
from passerelle.core.ports.log import StreamKind, StreamRef
from passerelle.core.times import parse_ms
from passerelle.store import keys
from passerelle.store.coalescer import Coalescer
from passerelle.store.connection import pack
from passerelle.store.replies import as_hash, as_scores, as_sparse_list, as_texts

if TYPE_CHECKING:
    from passerelle.core.json import JsonObject
    from passerelle.store.nodes import Nodes

_AT_ONCE: Final = 1_000

_Wanted: TypeAlias = tuple[str, int | None, tuple[int, str] | None]
"""An owner, how many, and below which place."""


class Pending:
    """Reads lists of pending questions by owner."""

    def __init__(self, nodes: Nodes) -> None:
        self._nodes = nodes
        self._pages: Coalescer[_Wanted, None, list[tuple[str, int]]] = Coalescer(self._list)

    async def list_newest(
        self, owner: str, limit: int | None, before: tuple[int, str] | None
    ) -> list[tuple[str, int]]:
        """So many, or all, below a place, with the times at which they were asked."""
        return list(await self._pages.call((owner, limit, before), None))

    async def _list(self, wanted: _Wanted, asked: list[None]) -> list[list[tuple[str, int]]]:
        """One read for all devices of a person that come at once."""
        page, is_whole = await self._read(wanted)
        if not is_whole:
            await self._order_anew(wanted[0])
            page, _ = await self._read(wanted)
        return [page] * len(asked)

    async def _read(self, wanted: _Wanted) -> tuple[list[tuple[str, int]], bool]:
        """A page, and whether every question has its place."""
        owner, limit, before = wanted
        shard = place(owner)
        order, copies = keys.inbox_order(shard, owner), keys.inbox_open(shard, owner)
        top = "+inf" if before is None else str(before[0])
        many = -1 if limit is None else limit
        found: list[tuple[str, int]] = []
        offset = 0
        while True:
            page, ordered, copied, marks = await self._nodes.query_all(
                shard,
                pack(
                    *("ZRANGE", order, top, "-inf", "BYSCORE", "REV"),
                    *("LIMIT", offset, many, "WITHSCORES"),
                ),
                pack("ZCARD", order),
                pack("HLEN", copies),
                pack("HMGET", _head(owner), "seq", "ordered"),
            )
            rows = as_scores(page)
            # Several may have been asked in one millisecond, and some of them are shown already.
            found += [row for row in rows if before is None or (row[1], row[0]) < before]
            if limit is None or len(rows) < limit or len(found) >= limit:
                end, whole = as_sparse_list(marks)
                return found[:limit], ordered == copied and (end or b"0") == (whole or b"0")
            offset += limit

    async def _order_anew(self, owner: str) -> None:
        shard = place(owner)
        order, copies = keys.inbox_order(shard, owner), keys.inbox_open(shard, owner)
        head = _head(owner)
        # Read before the hash: what is written meanwhile leaves the mark behind, and the set is made once more.
        [end, flat, known] = await self._nodes.query_all(
            shard, pack("HGET", head, "seq"), pack("HGETALL", copies), pack("ZRANGE", order, 0, -1)
        )
        times = {name: _read_time(view) for name, view in as_hash(flat).items()}
        gone = [name for name in as_texts(known) if name not in times]
        entries = [part for name, at_ms in times.items() for part in (at_ms, name)]
        for first in range(0, len(entries), 2 * _AT_ONCE):
            await self._nodes.update(
                shard, pack("ZADD", order, "NX", *entries[first : first + 2 * _AT_ONCE])
            )
        for first in range(0, len(gone), _AT_ONCE):
            await self._nodes.update(shard, pack("ZREM", order, *gone[first : first + _AT_ONCE]))
        if isinstance(end, bytes):
            await self._nodes.update(shard, pack("HSET", head, "ordered", end))


def _head(owner: str) -> str:
    return keys.head(StreamRef(StreamKind.INBOX, owner))


def _read_time(view: bytes) -> int:
    """When a question was asked, by what was copied of it."""
    try:
        copied: JsonObject = orjson.loads(view)
        return parse_ms(str(copied["createdAt"]))
    except (ValueError, KeyError):
        return 0
