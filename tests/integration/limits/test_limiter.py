"""Limits over several instances and a real engine: never exceeded, and no round trip for most requests."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pytest

from passerelle.core.errors import Limited, StoreUnavailable
from passerelle.core.principal import Principal
from passerelle.peers.limits import SendLimit
from passerelle.runtime.common.clock import SystemClock
from passerelle.runtime.limits.gate import Gate
from passerelle.runtime.limits.limit import Bounds, OverLimit, Rate
from passerelle.runtime.limits.limiter import Limiter
from tests.support.batches import operation
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Sequence

    from passerelle.core.ports.limits import Granted, LimitDraw
    from passerelle.runtime.limits.gate import AdmittedRequest
    from passerelle.runtime.limits.limit import Limit
    from passerelle.store.store import Store

pytestmark = pytest.mark.anyio
HOUR_MS = 3_600_000


@dataclass
class Counted:
    """The store's limits; counts calls, and is unavailable while ``away`` is set."""

    store: Store
    calls: int = 0
    away: bool = False

    async def take(
        self,
        name: str,
        instance: str,
        *,
        slots: int,
        limit: int,
        hold_ms: int,
        draws: Sequence[LimitDraw] = (),
    ) -> Granted:
        self.calls += 1
        if self.away:
            raise StoreUnavailable("away", "unknown")
        return await self.store.limits.take(
            name, instance, slots=slots, limit=limit, hold_ms=hold_ms, draws=draws
        )


async def test_three_instances_with_ten_slots_never_run_eleven_calls(store: Store) -> None:
    name, running, peak, done = operation(), 0, 0, 0
    async with AsyncExitStack() as stack:
        limits: list[Limit] = []
        for n in range(3):
            limiter = Limiter(store.limits, f"in_{n}", SystemClock(), round_s=0.02)
            await stack.enter_async_context(limiter)
            limits.append(limiter.open(name, Bounds(concurrency=10)))

        async def work(limit: Limit, calls: int) -> None:
            nonlocal running, peak, done
            while calls:
                if await limit.enter() is not None:
                    await asyncio.sleep(0.002)
                    continue
                calls -= 1
                running += 1
                peak = max(peak, running)
                await asyncio.sleep(0.001)
                running -= 1
                done += 1
                limit.leave()

        await asyncio.gather(*(work(limit, 8) for limit in limits for _ in range(8)))
    assert (done, peak) == (3 * 8 * 8, 10)


async def test_caller_on_one_instance_gets_all_slots_and_the_next_call_is_refused(
    store: Store,
) -> None:
    async with Limiter(store.limits, "in_a", SystemClock()) as limiter:
        limit = limiter.open(operation(), Bounds(concurrency=7))
        assert [await limit.enter() for _ in range(7)] == [None] * 7
        assert await limit.enter() == OverLimit("concurrency", 7, 1_000)
        limit.leave()
        assert limit.enter_now()


async def test_requests_after_the_first_make_no_store_call(store: Store) -> None:
    port = Counted(store)
    async with Limiter(port, "in_a", SystemClock()) as limiter:
        limit = limiter.open(operation(), Bounds(concurrency=8, rate=Rate(10_000, 1_000)))
        for _ in range(500):
            assert await limit.enter() is None
            limit.leave()
        assert port.calls <= 3


async def test_rate_gives_exactly_its_units_and_then_a_retry_time(store: Store) -> None:
    async with Limiter(store.limits, "in_a", SystemClock()) as limiter:
        limit = limiter.open(operation(), Bounds(rate=Rate(25, HOUR_MS)))
        answers = [await limit.enter() for _ in range(26)]
        assert answers[:25] == [None] * 25
        refused = answers[25]
        assert refused is not None
        assert (refused.kind, refused.limit) == ("rate_limit", 25)
        assert 0 < refused.retry_after_ms <= HOUR_MS / 25


async def test_reservation_without_a_send_uses_no_unit_of_the_rate(store: Store) -> None:
    async with Limiter(store.limits, "in_a", SystemClock()) as limiter:
        sends = SendLimit(limit := limiter.open(operation(), Bounds(3, Rate(5, HOUR_MS))))
        for number in range(40):
            place = sends.reserve_now() if number % 2 else await sends.reserve()
            assert place is not None, number
            place.give_back()
            place.give_back()
        assert limit.used == 0
        for _ in range(5):
            sent = sends.reserve_now() or await sends.reserve()
            assert sent is not None
            assert sent.use(), "a send leaves its slot, and has used its unit"
            sends.leave()
        assert await sends.reserve() is None, "its units are used"


async def test_reservation_returned_under_another_rate_adds_nothing_to_it(store: Store) -> None:
    async with Limiter(store.limits, "in_a", SystemClock()) as limiter:
        sends = SendLimit(limit := limiter.open(operation(), Bounds(8, Rate(5, HOUR_MS))))
        before = [await sends.reserve() for _ in range(3)]
        limit.rebind(Bounds(8, Rate(2, HOUR_MS)))
        for place in before:
            assert place is not None
            place.give_back()
        assert (limit.used, limit.meter and limit.meter.left) == (0, 0)


async def test_concurrent_requests_share_the_store_calls(store: Store) -> None:
    port = Counted(store)
    async with Limiter(port, "in_a", SystemClock()) as limiter:
        limit = limiter.open(operation(), Bounds(concurrency=60, rate=Rate(1_000, HOUR_MS)))
        answers = await asyncio.gather(*(limit.enter() for _ in range(60)))
        assert answers == [None] * 60
        assert port.calls <= 4


async def test_flood_of_refused_requests_makes_few_store_calls(store: Store) -> None:
    name, port = operation(), Counted(store)
    async with (
        Limiter(store.limits, "in_a", SystemClock()) as other,
        Limiter(port, "in_b", SystemClock()) as limiter,
    ):
        taken = other.open(name, Bounds(concurrency=2, rate=Rate(2, HOUR_MS)))
        assert [await taken.enter(), await taken.enter()] == [None, None]
        limit = limiter.open(name, Bounds(concurrency=2, rate=Rate(2, HOUR_MS)))
        answers = [await limit.enter() for _ in range(200)]
        assert None not in answers
        assert port.calls <= 3


async def test_unused_units_of_an_instance_go_to_the_others(store: Store) -> None:
    name, bounds = operation(), Bounds(concurrency=4, rate=Rate(8, HOUR_MS))
    async with (
        Limiter(store.limits, "in_a", SystemClock(), round_s=0.02) as first,
        Limiter(store.limits, "in_b", SystemClock(), round_s=0.02) as second,
    ):
        left = first.open(name, bounds)
        for _ in range(4):
            assert await left.enter() is None
        for _ in range(4):
            left.leave()
        right = second.open(name, bounds)
        entered = 0

        async def whole() -> bool:
            nonlocal entered
            entered += await right.enter() is None
            return entered == 4

        assert await wait_until(whole, 15, "the other instance has all slots")


async def test_end_of_an_instance_returns_its_slots_and_units(store: Store) -> None:
    name, bounds = operation(), Bounds(concurrency=4, rate=Rate(8, HOUR_MS))
    async with Limiter(store.limits, "in_a", SystemClock()) as first:
        limit = first.open(name, bounds)
        for _ in range(4):
            assert await limit.enter() is None
    async with Limiter(store.limits, "in_b", SystemClock()) as second:
        limit = second.open(name, bounds)
        assert [await limit.enter() for _ in range(4)] == [None] * 4
        for _ in range(4):
            limit.leave()
        refused = await limit.enter()
        assert refused is not None
        assert refused.kind == "rate_limit"


async def test_unavailable_store_is_an_error_only_for_requests_that_need_it(store: Store) -> None:
    port = Counted(store)
    async with Limiter(port, "in_a", SystemClock()) as limiter:
        limit = limiter.open(operation(), Bounds(concurrency=2))
        assert await limit.enter() is None
        port.away = True
        with pytest.raises(StoreUnavailable):
            await limit.enter()
        limit.leave()
        assert limit.enter_now()


async def test_bounds_can_change_during_running_calls(store: Store) -> None:
    async with Limiter(store.limits, "in_a", SystemClock()) as limiter:
        limit = limiter.open(operation(), Bounds())
        assert [limit.enter_now() for _ in range(3)] == [True] * 3
        limit.rebind(Bounds(concurrency=2))
        assert await limit.enter() == OverLimit("concurrency", 2, 1_000)
        limit.leave()
        limit.leave()
        assert await limit.enter() is None
        limit.rebind(Bounds())
        assert limit.enter_now()


async def test_call_refused_by_its_rate_holds_no_slot(store: Store) -> None:
    async with Limiter(store.limits, "in_a", SystemClock()) as limiter:
        limit = limiter.open(operation(), Bounds(concurrency=9, rate=Rate(1, HOUR_MS)))
        assert await limit.enter() is None
        for _ in range(20):
            refused = await limit.enter()
            assert refused is not None
            assert refused.kind == "rate_limit"
        assert limit.used == 1
        limit.leave()
        assert limit.used == 0


async def test_each_request_is_reported_for_bounded_and_unbounded_callers(store: Store) -> None:
    seen: list[str] = []
    async with Limiter(store.limits, operation(), SystemClock()) as limiter:
        gate = Gate(limiter, {"jo": Bounds(concurrency=1)}, on_seen=lambda who: seen.append(who.id))
        for name in ("jo", "flo"):
            await gate.enter(Principal(name), slot=False)
            gate.enter_now(Principal(name))
    assert seen == ["jo", "jo", "flo", "flo"]


async def test_each_caller_has_the_bounds_of_its_own_name_before_and_after_a_reload(
    store: Store,
) -> None:
    one, other = Bounds(concurrency=1), Bounds(concurrency=2)
    callers = Principal("jo"), Principal("jo", tenant="b"), Principal("is:a"), Principal("is:b")
    async with Limiter(store.limits, operation(), SystemClock()) as limiter:
        gate = Gate(limiter, {"jo": one, "is:": other})

        async def count_let_in(most: int) -> list[int]:
            """Returns how many calls of each caller are admitted at once; releases them all."""
            counts: list[int] = []
            for caller in callers:
                entered: list[AdmittedRequest] = []
                with suppress(Limited):
                    while len(entered) < most:
                        entered.append(await gate.enter(caller, slot=True))
                counts.append(len(entered))
                for call in entered:
                    call.leave()
            return counts

        assert await count_let_in(4) == [1, 1, 2, 2]
        under_way = await gate.enter(callers[0], slot=True)
        gate.rebind({"is:": one})
        assert await count_let_in(4) == [4, 4, 1, 1]
        gate.rebind({"jo": other})
        assert await count_let_in(4) == [1, 2, 4, 4], "a call that is under way still counts"
        under_way.leave()
