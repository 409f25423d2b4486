"""Sessions are drawn from every primary of a store, from the requested shards, and none of them twice."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from passerelle.core.ids import Shard, shard_of
from passerelle.runtime.common.clock import SystemIds
from tests.contract.test_archive import Story, begin, leave
from tests.support.batches import make_place

if TYPE_CHECKING:
    from collections.abc import Callable

    from passerelle.store.archive.segment import SegmentName
    from passerelle.store.store import Store

pytestmark = pytest.mark.anyio
SHARDS = (Shard(1), Shard(22), Shard(40), Shard(63))


async def test_sessions_are_drawn_from_every_primary(store: Store) -> None:
    reported = {
        (await begin(store, 1, Story(make_place(shard)))).at.session
        for shard in SHARDS
        for _ in range(3)
    }
    ids = SystemIds()
    assert set(await store.inspection.draw_sessions(SHARDS, 100, ids.draw)) == reported
    for asked in (SHARDS, SHARDS[:2]):
        drawn = [await store.inspection.draw_sessions(asked, 4, ids.draw) for _ in range(40)]
        assert all(len(set(one)) == 4 for one in drawn)
        seen = {session for one in drawn for session in one}
        assert seen == {session for session in reported if shard_of(session) in asked}
    assert await store.inspection.draw_sessions((), 4, ids.draw) == []


async def draw_names(
    store: Store, count: int, draw: Callable[[int], int]
) -> set[tuple[Shard, SegmentName]]:
    """Draws ``count`` segments, none of them twice."""
    drawn = await store.archive.draw_segments(SHARDS, count, draw)
    names = {(shard, one.name) for shard, one in drawn}
    assert len(names) == len(drawn)
    return names


async def test_segments_are_drawn_of_every_shard(store: Store) -> None:
    for shard in SHARDS:
        for _ in range(2):
            await leave(store, await begin(store, 1, Story(make_place(shard))))
    draw = SystemIds().draw
    everything = await draw_names(store, 100, draw)
    assert len(everything) == 8
    drawn = [await draw_names(store, 2, draw) for _ in range(60)]
    assert all(len(one) == 2 for one in drawn)
    assert {place for one in drawn for place in one} == everything
