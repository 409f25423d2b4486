"""Shared limits: never more is granted than available, and a dead instance's block is returned."""

from __future__ import annotations

import asyncio

import pytest

from passerelle.core.ports.limits import Bucket, Drawn, Granted, Period
from passerelle.store.store import Store
from tests.support.batches import operation
from tests.support.waiting import wait_until

pytestmark = pytest.mark.anyio

HOUR_MS = 3_600_000
DAY_MS = 24 * HOUR_MS


async def hold(
    store: Store, name: str, instance: str, slots: int, *, limit: int = 10, hold_ms: int = 10_000
) -> int:
    granted = await store.limits.take(name, instance, slots=slots, limit=limit, hold_ms=hold_ms)
    return granted.slots


async def draw(store: Store, name: str, *draws: Bucket | Period) -> tuple[Drawn, ...]:
    granted = await store.limits.take(
        name, "in_a", slots=0, limit=0, hold_ms=10_000, draws=list(draws)
    )
    return granted.drawn


async def test_three_instances_never_hold_more_slots_than_the_limit(store: Store) -> None:
    name = operation()
    granted = await asyncio.gather(*(hold(store, name, f"in_{n}", 5) for n in range(3)))
    assert sorted(granted) == [0, 5, 5]


async def test_slots_given_back_are_free_for_others(store: Store) -> None:
    name = operation()
    assert await hold(store, name, "in_a", 8) == 8
    assert await hold(store, name, "in_b", 8) == 2
    assert await hold(store, name, "in_a", 1) == 1
    assert await hold(store, name, "in_b", 8) == 8
    assert await hold(store, name, "in_b", 0) == 0
    assert await hold(store, name, "in_a", 10) == 10


async def test_block_of_a_dead_instance_is_free_after_its_time(store: Store) -> None:
    name = operation()
    await hold(store, name, "in_dead", 10, hold_ms=30)

    async def free() -> bool:
        return await hold(store, name, "in_b", 10) == 10

    assert await wait_until(free, 15, "the block is free")


async def test_bucket_grants_its_units_and_returns_when_there_are_more(store: Store) -> None:
    name = operation()
    given = [(await draw(store, name, Bucket("rate", 4, 10, HOUR_MS)))[0] for _ in range(4)]
    assert [(one.given, one.left) for one in given] == [(4, 6), (4, 2), (2, 0), (0, 0)]
    assert given[1].note == 0
    assert 0.99 * HOUR_MS / 10 < given[3].note <= HOUR_MS / 10


async def test_units_returned_to_a_bucket_can_be_drawn_again_and_never_overfill_it(
    store: Store,
) -> None:
    name = operation()
    await draw(store, name, Bucket("rate", 7, 10, HOUR_MS))
    (back,) = await draw(store, name, Bucket("rate", -5, 10, HOUR_MS))
    assert (back.given, back.left) == (-5, 8)
    (again,) = await draw(store, name, Bucket("rate", -9, 10, HOUR_MS))
    assert again.left == 10


async def test_units_flow_back_into_a_bucket(store: Store) -> None:
    name = operation()
    await draw(store, name, Bucket("rate", 5, 5, 100))

    async def full() -> bool:
        (drawn,) = await draw(store, name, Bucket("rate", 0, 5, 100))
        return drawn.left == 5

    assert await wait_until(full, 15, "the bucket is full again")


def period(want: int, start_ms: int = 0, *, limit: int = 10, mark: bool = False) -> Period:
    till_ms = start_ms + DAY_MS
    return Period("calls", want, limit, start_ms, till_ms, mark)


async def test_period_has_no_refill_and_the_next_one_starts_full(store: Store) -> None:
    name = operation()
    today, tomorrow = DAY_MS, 2 * DAY_MS
    assert (await draw(store, name, period(8, today)))[0] == Drawn(8, 2, 0)
    assert (await draw(store, name, period(8, today)))[0] == Drawn(2, 0, 0)
    assert (await draw(store, name, period(8, tomorrow)))[0] == Drawn(8, 2, 0)


async def test_instance_with_a_lagging_clock_draws_from_the_newer_period(store: Store) -> None:
    name = operation()
    await draw(store, name, period(9, 2 * DAY_MS))
    assert (await draw(store, name, period(9, DAY_MS)))[0] == Drawn(1, 0, 0)
    assert (await draw(store, name, period(-5, DAY_MS)))[0] == Drawn(0, 0, 0)


async def test_lower_limit_of_a_period_binds_what_was_used_before(store: Store) -> None:
    name = operation()
    await draw(store, name, period(6, DAY_MS, limit=10))
    assert (await draw(store, name, period(1, DAY_MS, limit=5)))[0] == Drawn(0, 0, 0)
    assert (await draw(store, name, period(9, DAY_MS, limit=8)))[0] == Drawn(2, 0, 0)


async def test_mark_is_set_once_in_a_period(store: Store) -> None:
    name = operation()
    marks = [(await draw(store, name, period(0, DAY_MS, mark=True)))[0].note for _ in range(3)]
    assert marks == [1, 0, 0]
    assert (await draw(store, name, period(0, 2 * DAY_MS, mark=True)))[0].note == 1


async def test_slots_and_several_meters_are_one_call_and_do_not_disturb_each_other(
    store: Store,
) -> None:
    name = operation()
    granted = await store.limits.take(
        name,
        "in_a",
        slots=3,
        limit=10,
        hold_ms=10_000,
        draws=[Bucket("rate", 2, 5, HOUR_MS), Period("money", 2**40, 2**41, DAY_MS, 2 * DAY_MS)],
    )
    assert granted == Granted(3, granted.now_ms, (Drawn(2, 3, 0), Drawn(2**40, 2**40, 0)))
    again = await store.limits.take(name, "in_b", slots=10, limit=10, hold_ms=10_000)
    assert again.slots == 7


async def test_meter_outlives_its_slots(store: Store) -> None:
    name = operation()
    await draw(store, name, period(9, DAY_MS))
    await hold(store, name, "in_a", 1, hold_ms=30)
    await hold(store, name, "in_a", 0, hold_ms=30)

    async def gone() -> bool:
        return await hold(store, name, "in_b", 10, hold_ms=30) == 10

    assert await wait_until(gone, 15, "the slots are free")
    assert (await draw(store, name, period(9, DAY_MS)))[0].given == 1
