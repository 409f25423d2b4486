"""The lock of a run: one holder at a time and in order, whichever waiter is cancelled."""

import asyncio
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from passerelle.protocol.concurrency import FairLock

WITHIN_S = 10.0


async def play(cancelled: Sequence[tuple[int, int]]) -> list[int]:
    """Eight tasks wait for it; ``cancelled`` names those cancelled at each pass of the loop. Returns the holders."""
    lock, had, inside = FairLock(), list[int](), 0

    async def work(number: int) -> None:
        nonlocal inside
        await lock.acquire()
        try:
            inside += 1
            assert inside == 1
            had.append(number)
            await asyncio.sleep(0)
        finally:
            inside -= 1
            lock.release()

    tasks = [asyncio.create_task(work(number)) for number in range(8)]
    for at in range(24):
        for number, when in cancelled:
            if when == at:
                tasks[number].cancel()
        await asyncio.sleep(0)
    async with asyncio.timeout(WITHIN_S):
        await asyncio.gather(*tasks, return_exceptions=True)
        await lock.acquire()
    return had


@given(st.lists(st.tuples(st.integers(0, 7), st.integers(0, 23)), max_size=6))
def test_one_has_it_at_a_time_and_in_order(cancelled: list[tuple[int, int]]) -> None:
    had = asyncio.run(play(cancelled))
    assert had == sorted(had)
    assert {*range(8)} - {*had} <= {number for number, _ in cancelled}


@pytest.mark.anyio
async def test_a_released_lock_is_free_if_no_task_waits() -> None:
    lock = FairLock()
    for _ in range(2):
        async with asyncio.timeout(WITHIN_S):
            await lock.acquire()
        lock.release()
