"""When segments are merged, how many per sweep, and what happens after a failed sweep."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import cast

import pytest
import structlog

from passerelle.core.errors import StoreUnavailable
from passerelle.core.ids import Shard
from passerelle.delegation.duties.merge_sweep import MergeSweep
from passerelle.store.archive.segment_merge import MergedSegments, SegmentMerge
from tests.support.waiting import wait_until

pytestmark = pytest.mark.anyio
NOW_MS = 1_800_000_000_000


@dataclass
class Merge:
    """Makes one object of eight in each shard; each call is kept."""

    fails: list[Exception] = field(default_factory=list[Exception])
    calls: list[tuple[int, int, int]] = field(default_factory=list[tuple[int, int, int]])

    async def merge(self, home: Shard, now_ms: int, most: int) -> MergedSegments:
        if self.fails:
            raise self.fails.pop()
        self.calls.append((home.number, now_ms, most))
        return MergedSegments(1, 8, 100, ["segment 12 of the archive is gone"])


def make_sweep(merge: Merge, *, may: bool = True) -> MergeSweep:
    async def may_archive() -> bool:
        return may

    return MergeSweep(
        cast("SegmentMerge", merge),
        may_archive,
        lambda: frozenset({Shard(9), Shard(3)}),
        lambda shard: NOW_MS + shard.number,
        structlog.get_logger(),
        every_s=0.001,
        pause_s=0,
    )


async def test_each_shard_is_merged_by_its_own_clock_and_what_is_damaged_is_named() -> None:
    merge = Merge()
    with structlog.testing.capture_logs() as logs:
        assert await make_sweep(merge).sweep() == 16
    assert merge.calls == [(3, NOW_MS + 3, 4), (9, NOW_MS + 9, 4)]
    assert [line["event"] for line in logs] == ["archive.merge_failed", "archive.merged"] * 2
    assert logs[0]["reason"] == "segment 12 of the archive is gone"
    assert (logs[1]["segments"], logs[1]["into"], logs[1]["bytes"]) == (8, 1, 100)


@pytest.mark.parametrize("fault", [StoreUnavailable("refused", "no"), KeyError("of our own")])
async def test_a_look_that_fails_is_followed_by_another(fault: Exception) -> None:
    merge = Merge([fault])
    running = asyncio.create_task(make_sweep(merge).run())
    await wait_until(lambda: merge.calls, 10, "a later look")
    running.cancel()


async def test_in_a_place_of_its_own_nothing_is_merged() -> None:
    merge = Merge()
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.1):
            await make_sweep(merge, may=False).run()
    assert not merge.calls
