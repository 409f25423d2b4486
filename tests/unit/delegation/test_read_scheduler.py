"""Turns of heavy runs: one in every few turns of the loop, by caller, agent and run."""

from __future__ import annotations

import asyncio
from collections import Counter

import pytest

from passerelle.delegation.runs.read_scheduler import ReadScheduler, RoundRobin

pytestmark = pytest.mark.anyio


def test_turns_go_round_callers_then_agents_then_runs() -> None:
    rotation: RoundRobin[str] = RoundRobin()
    for number in range(1, 4):
        rotation.add("alice", "talker", f"alice talker {number}")
    rotation.add("alice", "other", "alice other")
    rotation.add("bob", "talker", "bob talker")
    assert [rotation.pop() for _ in range(6)] == [
        "alice talker 1",
        "bob talker",
        "alice other",
        "alice talker 2",
        "alice talker 3",
        None,
    ]


def test_twenty_runs_of_one_have_together_what_one_run_of_another_has() -> None:
    rotation: RoundRobin[tuple[str, int]] = RoundRobin()
    for number in range(20):
        rotation.add("alice", "talker", ("alice", number))
    rotation.add("bob", "talker", ("bob", 0))
    had: Counter[str] = Counter()
    for _ in range(40):
        item = rotation.pop()
        assert item is not None
        had[item[0]] += 1
        # A caller that had a turn wants the next one.
        rotation.add(item[0], "talker", item)
    assert had == {"alice": 20, "bob": 20}


async def test_others_have_several_turns_of_the_loop_between_two() -> None:
    turns, had = ReadScheduler(), list[str]()

    async def want(name: str) -> None:
        await turns.take("alice", "talker")
        had.append(name)

    wanting = [asyncio.create_task(want(str(number))) for number in range(5)]
    looped = 0
    while len(had) < 5:
        await asyncio.sleep(0)
        looped += 1
        assert len(had) <= 1 + looped / 8
    await asyncio.gather(*wanting)
    assert had == ["0", "1", "2", "3", "4"]
    assert turns.waiting == 0


async def test_a_cancelled_reader_does_not_block_the_others() -> None:
    turns = ReadScheduler()
    first, gone, kept = (
        asyncio.create_task(turns.take(caller, "talker")) for caller in ("eve", "alice", "bob")
    )
    await asyncio.sleep(0)
    assert turns.waiting == 2
    gone.cancel()
    async with asyncio.timeout(10):
        await first
        await kept
        with pytest.raises(asyncio.CancelledError):
            await gone
        await turns.take("alice", "talker")
