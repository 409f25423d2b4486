"""Devices are admitted in batches and in order, and none waits for long."""

from __future__ import annotations

import asyncio

import pytest

from passerelle.channels import admission_queue
from passerelle.channels.admission_queue import BATCH_SIZE, AdmissionQueue
from tests.support.waiting import wait_until

pytestmark = pytest.mark.anyio


async def _arrive(door: AdmissionQueue, many: int) -> tuple[list[int], list[asyncio.Task[None]]]:
    inside: list[int] = []

    async def enter(number: int) -> None:
        await door.enter()
        inside.append(number)

    arriving = [asyncio.create_task(enter(number)) for number in range(many)]
    await _rest()
    return inside, arriving


async def _rest() -> None:
    for _ in range(3):
        await asyncio.sleep(0)


async def test_an_arrival_at_an_empty_queue_is_admitted_at_once() -> None:
    inside, _ = await _arrive(AdmissionQueue(), BATCH_SIZE)
    assert inside == [*range(BATCH_SIZE)]


async def test_the_next_party_goes_in_when_the_last_one_of_a_party_has_left_and_in_order() -> None:
    door = AdmissionQueue()
    inside, _ = await _arrive(door, 2 * BATCH_SIZE + 3)
    for _ in range(BATCH_SIZE - 1):
        door.leave()
        await _rest()
        assert len(inside) == BATCH_SIZE
    door.leave()
    await _rest()
    assert inside == [*range(2 * BATCH_SIZE)]
    for _ in range(BATCH_SIZE):
        door.leave()
    await _rest()
    assert inside == [*range(2 * BATCH_SIZE + 3)]


async def test_a_cancelled_wait_takes_no_slot() -> None:
    door = AdmissionQueue()
    inside, arriving = await _arrive(door, 2 * BATCH_SIZE + 1)
    arriving[BATCH_SIZE].cancel()
    await asyncio.wait([arriving[BATCH_SIZE]])
    for _ in range(BATCH_SIZE):
        door.leave()
    await _rest()
    assert inside[BATCH_SIZE:] == [*range(BATCH_SIZE + 1, 2 * BATCH_SIZE + 1)]


async def test_a_wait_that_is_cancelled_before_its_turn_is_skipped() -> None:
    door = AdmissionQueue()
    inside, arriving = await _arrive(door, 2 * BATCH_SIZE + 1)
    arriving[BATCH_SIZE].cancel()
    for _ in range(BATCH_SIZE):
        door.leave()
    await _rest()
    assert arriving[BATCH_SIZE].cancelled()
    assert inside[BATCH_SIZE:] == [*range(BATCH_SIZE + 1, 2 * BATCH_SIZE + 1)]


async def test_a_wait_that_is_cancelled_at_its_turn_returns_the_slot() -> None:
    door = AdmissionQueue()
    inside, arriving = await _arrive(door, 2 * BATCH_SIZE + 1)
    for _ in range(BATCH_SIZE):
        door.leave()
    arriving[BATCH_SIZE].cancel()
    await _rest()
    assert inside[BATCH_SIZE:] == [*range(BATCH_SIZE + 1, 2 * BATCH_SIZE)]
    for _ in range(BATCH_SIZE - 1):
        door.leave()
    await arriving[2 * BATCH_SIZE]
    assert inside[-1] == 2 * BATCH_SIZE


async def test_all_go_in_where_a_party_takes_longer_than_patience(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(admission_queue, "MAX_WAIT_S", 0.01)
    door = AdmissionQueue()
    inside, _ = await _arrive(door, 3 * BATCH_SIZE)
    await wait_until(lambda: len(inside) == 3 * BATCH_SIZE, 10.0, "all of them are inside")
    later, _ = await _arrive(door, 1)
    assert later == [], "more than a party is inside"
    for _ in range(3 * BATCH_SIZE):
        door.leave()
    await wait_until(lambda: later == [0], 10.0, "there is room again")


async def test_all_go_in_also_where_the_first_of_them_has_given_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(admission_queue, "MAX_WAIT_S", 0.01)
    door = AdmissionQueue()
    inside, arriving = await _arrive(door, BATCH_SIZE + 3)
    arriving[BATCH_SIZE].cancel()
    await wait_until(lambda: len(inside) == BATCH_SIZE + 2, 10.0, "those who still wait are inside")


async def test_the_longest_wait_is_counted_for_each_head_of_the_queue(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(admission_queue, "MAX_WAIT_S", 0.01)
    door = AdmissionQueue()
    inside, _ = await _arrive(door, 2 * BATCH_SIZE + 1)
    for _ in range(BATCH_SIZE):
        door.leave()
    await _rest()
    assert len(inside) >= 2 * BATCH_SIZE
    await wait_until(lambda: len(inside) == 2 * BATCH_SIZE + 1, 10.0, "the last one is inside, too")
