"""Rounds: each shard at its own interval, one visit at a time, not delayed by another shard."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest
import structlog
from structlog.testing import capture_logs

from passerelle.core.errors import StoreUnavailable
from passerelle.core.ids import Shard
from passerelle.delegation.duties.rounds import Rounds
from tests.support.waiting import wait_until

pytestmark = pytest.mark.anyio

ONE, TWO = Shard(1), Shard(2)
HOUR_S = 3600.0
"""Longer than a test runs: no shard is visited again unless woken."""


@asynccontextmanager
async def running(
    visit: Callable[[Shard], Awaitable[float]], duties: set[Shard]
) -> AsyncGenerator[Rounds]:
    rounds = Rounds(
        "test", visit, lambda: frozenset(duties), structlog.get_logger(), longest_s=HOUR_S
    )
    task = asyncio.create_task(rounds.run())
    try:
        yield rounds
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def test_stuck_visit_delays_no_other_shard() -> None:
    visits: Counter[Shard] = Counter()

    async def visit(shard: Shard) -> float:
        visits[shard] += 1
        if shard == ONE:
            await asyncio.Event().wait()
        return 0.0

    async with running(visit, {ONE, TWO}):
        await wait_until(lambda: visits[TWO] > 20, 10, "the other one is visited on")
        assert visits[ONE] == 1


async def test_wake_during_a_visit_causes_another_visit() -> None:
    visits: list[int] = []
    gate = asyncio.Event()

    async def visit(_shard: Shard) -> float:
        visits.append(1)
        await gate.wait()
        return HOUR_S

    async with running(visit, {ONE}) as rounds:
        await wait_until(lambda: visits, 10, "the first visit")
        rounds.wake(ONE)
        rounds.wake(ONE)
        gate.set()
        await wait_until(lambda: len(visits) == 2, 10, "the second visit")


async def test_wakes_bring_a_visit_forward_and_share_it() -> None:
    visits: list[float] = []

    async def visit(_shard: Shard) -> float:
        visits.append(asyncio.get_running_loop().time())
        return HOUR_S

    async with running(visit, {ONE}) as rounds:
        await wait_until(lambda: visits, 10, "the first visit")
        for _ in range(10):
            rounds.wake(ONE, 0.1)
        rounds.wake(TWO)
        await wait_until(lambda: len(visits) == 2, 10, "one visit for all wakes")
        assert visits[1] - visits[0] >= 0.1


async def test_shard_is_not_visited_without_its_duty_and_at_once_when_it_returns() -> None:
    visits: list[Shard] = []
    duties = {ONE}

    async def visit(shard: Shard) -> float:
        visits.append(shard)
        return HOUR_S

    async with running(visit, duties) as rounds:
        await wait_until(lambda: visits == [ONE], 10, "the first visit")
        duties.clear()
        duties.add(TWO)
        rounds.look_again()
        await wait_until(lambda: visits == [ONE, TWO], 10, "the new one")
        duties.add(ONE)
        rounds.look_again()
        await wait_until(lambda: visits == [ONE, TWO, ONE], 10, "the old one again")


async def test_failing_visits_are_repeated_and_counted_and_logged_once() -> None:
    outcomes: list[str] = []
    failures: list[Exception] = [*(StoreUnavailable("test", "no") for _ in range(3)), KeyError("x")]

    async def visit(_shard: Shard) -> float:
        if failures:
            raise failures.pop(0)
        return HOUR_S

    with capture_logs() as logs:
        async with running(visit, {ONE}) as rounds:
            rounds.count = outcomes.append
            await wait_until(lambda: len(outcomes) == 4 and not failures, 10, "all have failed")
            await wait_until(
                lambda: any(line["event"] == "duty.resumed" for line in logs),
                15,
                "the resumption is logged",
            )
    assert outcomes == ["store", "store", "store", "fault"]
    assert [line["event"] for line in logs] == ["duty.held", "duty.failed", "duty.resumed"]


async def test_delayed_wake_causes_no_earlier_look() -> None:
    shards, looks = frozenset(map(Shard, range(10))), 0
    visits: Counter[Shard] = Counter()

    async def visit(shard: Shard) -> float:
        visits[shard] += 1
        return HOUR_S

    def list_duties() -> frozenset[Shard]:
        nonlocal looks
        looks += 1
        return shards

    rounds = Rounds("test", visit, list_duties, structlog.get_logger(), longest_s=HOUR_S)
    task = asyncio.create_task(rounds.run())
    await wait_until(lambda: visits.total() == len(shards), 10, "each is visited once")
    looks = 0
    for shard in shards:
        rounds.wake(shard, 0.05)
    await wait_until(lambda: visits.total() == 2 * len(shards), 10, "each is visited again")
    assert looks <= 3, "once at the wake, once when due, and a timer may be early"
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
