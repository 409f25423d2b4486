"""When the archive is cleaned up, by which instance, and what happens after a failed sweep."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import cast

import pytest
import structlog

from passerelle.core.errors import ArchiveDamaged, StoreUnavailable
from passerelle.core.ids import Shard
from passerelle.delegation.duties.segment_sweep import SegmentSweep
from passerelle.store.archive.segment_cleanup import CleanedSegments, SegmentCleanup
from tests.support.waiting import wait_until

pytestmark = pytest.mark.anyio
NOW_MS = 1_800_000_000_000


@dataclass
class Cleanup:
    """Finds a segment in each shard; each call is kept."""

    fails: list[Exception] = field(default_factory=list[Exception])
    calls: list[tuple[int, int]] = field(default_factory=list[tuple[int, int]])

    async def clean(self, shard: Shard, now_ms: int) -> CleanedSegments:
        if self.fails:
            raise self.fails.pop()
        self.calls.append((shard.number, now_ms))
        return CleanedSegments(0, 1, 100)


def make_sweep(cleanup: Cleanup, *, may: bool = True) -> SegmentSweep:
    async def may_archive() -> bool:
        return may

    return SegmentSweep(
        cast("SegmentCleanup", cleanup),
        may_archive,
        lambda: frozenset({Shard(9), Shard(3)}),
        lambda shard: NOW_MS + shard.number,
        structlog.get_logger(),
        first_s=0,
        every_s=0.001,
    )


async def test_each_shard_is_judged_by_its_own_clock() -> None:
    cleanup = Cleanup()
    assert await make_sweep(cleanup).sweep() == 2
    assert cleanup.calls == [(3, NOW_MS + 3), (9, NOW_MS + 9)]


async def test_a_damaged_shard_does_not_hold_up_the_others() -> None:
    cleanup = Cleanup([ArchiveDamaged("a row of the archive of shard 03")])
    assert await make_sweep(cleanup).sweep() == 1
    assert cleanup.calls == [(9, NOW_MS + 9)]


@pytest.mark.parametrize("fault", [StoreUnavailable("refused", "no"), KeyError("of our own")])
async def test_a_look_that_fails_is_followed_by_another(fault: Exception) -> None:
    cleanup = Cleanup([fault])
    running = asyncio.create_task(make_sweep(cleanup).run())
    await wait_until(lambda: cleanup.calls, 10, "a later look")
    running.cancel()


async def test_in_a_place_of_its_own_nothing_is_deleted() -> None:
    cleanup = Cleanup()
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.1):
            await make_sweep(cleanup, may=False).run()
    assert not cleanup.calls
