"""When a deletion is resumed, by which instance, and what happens after a failed sweep."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, cast

import pytest
import structlog

from passerelle.core.errors import StoreUnavailable
from passerelle.core.ids import Shard
from passerelle.delegation.duties.forget_sweep import ForgetSweep
from passerelle.store.archive.sealed_frame import KeyName
from passerelle.store.archive.session_tombstones import SessionTombstone
from passerelle.store.archive.tombstones import Tombstone
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Collection

    from passerelle.store.archive.forgetting import Forgetting
    from passerelle.store.archive.session_forgetting import SessionForgetting

pytestmark = pytest.mark.anyio
NOW_MS = 1_800_000_000_000
WEEK_MS = 7 * 24 * 3_600_000
MINE = frozenset({Shard(9), Shard(3)})


@dataclass
class Resuming:
    """Finds one tombstone each time; each call is kept."""

    fails: list[Exception] = field(default_factory=list[Exception])
    calls: list[int] = field(default_factory=list[int])

    async def resume(self, shards: Collection[Shard], since_ms: int) -> list[Tombstone]:
        if self.fails:
            raise self.fails.pop()
        assert shards == MINE
        self.calls.append(since_ms)
        return [Tombstone(KeyName.draw(Shard(9)), "tag", NOW_MS, "operator")]


@dataclass
class ResumingSessions:
    """Finds one tombstone once."""

    left: list[SessionTombstone] = field(
        default_factory=lambda: [SessionTombstone("09" + "ab" * 8, NOW_MS, "operator")]
    )

    async def resume(self, shards: Collection[Shard], since_ms: int) -> list[SessionTombstone]:
        assert shards == MINE
        assert since_ms
        found, self.left = self.left, []
        return found


def make_sweep(
    resuming: Resuming, epochs: dict[Shard, int], duties: frozenset[Shard] = MINE
) -> ForgetSweep:
    return ForgetSweep(
        cast("Forgetting", resuming),
        cast("SessionForgetting", ResumingSessions()),
        lambda: duties,
        lambda shard: NOW_MS + shard.number,
        lambda shard: epochs.get(shard, 0),
        structlog.get_logger(),
        first_s=0,
        every_s=0.001,
    )


async def test_only_a_new_epoch_of_any_shard_has_all_of_a_week_looked_at_again() -> None:
    resuming, epochs = Resuming(), dict[Shard, int]()
    sweep = make_sweep(resuming, epochs)
    assert await sweep.sweep() == 2
    assert await sweep.sweep() == 1
    epochs[Shard(40)] = 1
    resuming.fails.append(StoreUnavailable("refused", "no"))
    with pytest.raises(StoreUnavailable):
        await sweep.sweep()
    for _ in range(2):
        await sweep.sweep()
    now_ms = NOW_MS + 9
    assert [since_ms < now_ms for since_ms in resuming.calls] == [False, False, True, False]
    assert resuming.calls[2] == now_ms - WEEK_MS


async def test_an_instance_without_shards_sweeps_nothing() -> None:
    resuming = Resuming()
    assert await make_sweep(resuming, {}, frozenset()).sweep() == 0
    assert not resuming.calls


@pytest.mark.parametrize("fault", [StoreUnavailable("refused", "no"), KeyError("of our own")])
async def test_a_look_that_fails_is_followed_by_another(fault: Exception) -> None:
    resuming = Resuming([fault])
    running = asyncio.create_task(make_sweep(resuming, {}).run())
    await wait_until(lambda: resuming.calls, 10, "a later look")
    running.cancel()
