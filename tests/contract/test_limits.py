"""Shared limits: never more granted than there is, and a dead instance's block comes back."""

from __future__ import annotations

import asyncio

import pytest

from passerelle.store.limits import Granted
from passerelle.store.store import Store
from tests.support.batches import operation
from tests.support.waiting import wait_until

pytestmark = pytest.mark.anyio


async def test_three_instances_never_hold_more_slots_than_the_limit(store: Store) -> None:
    name = operation()
    granted = await asyncio.gather(
        *(store.limits.take(name, f"in_{n}", slots=5, limit=10) for n in range(3))
    )
    assert sorted(grant.slots for grant in granted) == [0, 5, 5]


async def test_slots_given_back_are_free_for_others(store: Store) -> None:
    name = operation()
    assert (await store.limits.take(name, "in_a", slots=8, limit=10)).slots == 8
    assert (await store.limits.take(name, "in_b", slots=8, limit=10)).slots == 2
    assert (await store.limits.take(name, "in_a", slots=1, limit=10)).slots == 1
    assert (await store.limits.take(name, "in_b", slots=8, limit=10)).slots == 8
    assert (await store.limits.take(name, "in_b", slots=0, limit=10)).slots == 0
    assert (await store.limits.take(name, "in_a", slots=10, limit=10)).slots == 10


async def test_block_of_a_dead_instance_is_free_after_its_time(store: Store) -> None:
    name = operation()
    await store.limits.take(name, "in_dead", slots=10, limit=10, hold_ms=30)

    async def free() -> bool:
        return (await store.limits.take(name, "in_b", slots=10, limit=10)).slots == 10

    assert await wait_until(free, 5, "the block is free")


async def test_tokens_of_one_second_are_drawn_once(store: Store) -> None:
    name = operation()

    async def draw(instance: str, tokens: int) -> Granted:
        return await store.limits.take(name, instance, slots=0, limit=0, tokens=tokens, rate=100)

    # One second of the server may end between the calls: then the next has its own tokens.
    for _ in range(10):
        draws = [await draw(f"in_{n}", 40) for n in range(3)]
        if len({grant.now_ms // 1000 for grant in draws}) == 1:
            assert [grant.tokens for grant in draws] == [40, 40, 20]
            break
        name = operation()
    else:
        pytest.fail("no three calls fell into one second")
