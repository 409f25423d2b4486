"""Pages of sorted sets whose scores are times: the newest first, strictly below a place, and several sets as one."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, TypeAlias

from passerelle.store.connection import pack
from passerelle.store.replies import as_scores

if TYPE_CHECKING:
    from collections.abc import Sequence

    from passerelle.core.ids import Shard
    from passerelle.store.nodes import Nodes

Place: TypeAlias = tuple[int, str]
"""A time in ms and a member: where the page before ended."""


async def read_page(
    nodes: Nodes, shard: Shard, names: Sequence[str], before: Place | None, limit: int
) -> list[tuple[str, int]]:
    """Members with their times out of all the sets; one that moves meanwhile may be met in two, and counts once.

    Raises:
        StoreUnavailable: nobody knows.
    """
    pages = await asyncio.gather(*(_read_one(nodes, shard, name, before, limit) for name in names))
    if len(pages) == 1:
        return pages[0]
    rows = dict(sorted((row for page in pages for row in page), key=lambda row: row[1]))
    return sorted(rows.items(), key=lambda row: (row[1], row[0]), reverse=True)[:limit]


async def _read_one(
    nodes: Nodes, shard: Shard, name: str, before: Place | None, limit: int
) -> list[tuple[str, int]]:
    top = "+inf" if before is None else str(before[0])
    found: list[tuple[str, int]] = []
    offset = 0
    while len(found) < limit:
        command = pack(
            "ZRANGE", name, top, "-inf", "BYSCORE", "REV", "LIMIT", offset, limit, "WITHSCORES"
        )
        page = await nodes.query(shard, command, as_scores)
        # Several may have one time, and some of them are shown already.
        found += [row for row in page if before is None or (row[1], row[0]) < before]
        if len(page) < limit:
            break
        offset += limit
    return found[:limit]
