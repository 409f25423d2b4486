"""Gateways that the chaos run kills while they start are started again, and are no faults."""

from __future__ import annotations

import asyncio

from tests.chaos.revivals import Revivals


class Starts:
    """Starts of gateways that fail in turn: ``outcomes`` are released one by one by the test."""

    def __init__(self) -> None:
        self.begun: list[int] = []
        self.outcomes: asyncio.Queue[Exception | None] = asyncio.Queue()

    async def start(self, number: int) -> None:
        self.begun.append(number)
        outcome = await self.outcomes.get()
        if outcome is not None:
            raise outcome


def _run(*outcomes: Exception | None, kills_after: int) -> tuple[list[int], list[str]]:
    """Kills gateway 1 a second time once ``kills_after`` outcomes are known; returns the starts and the faults."""

    async def run() -> tuple[list[int], list[str]]:
        starts, faults = Starts(), list[str]()
        revivals = Revivals(starts.start, faults)
        revivals.begin(1)
        while not starts.begun:
            await asyncio.sleep(0)
        for number, outcome in enumerate(outcomes):
            if number == kills_after:
                revivals.begin(1)
            starts.outcomes.put_nowait(outcome)
        await revivals.settle()
        return starts.begun, faults

    return asyncio.run(run())


def test_a_gateway_killed_while_it_starts_is_started_again_and_is_no_fault() -> None:
    ended = RuntimeError("ended")
    assert _run(ended, None, kills_after=0) == ([1, 1], [])


def test_a_gateway_killed_right_after_it_was_ready_is_started_again() -> None:
    assert _run(None, None, kills_after=1) == ([1, 1], [])


def test_a_gateway_that_does_not_start_is_one_fault() -> None:
    begun, faults = _run(RuntimeError("ended: the port is in use"), kills_after=9)
    assert begun == [1]
    assert faults == ["gateway 1 did not come back: ended: the port is in use"]
