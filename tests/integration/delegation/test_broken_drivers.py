"""A driver that fails with an internal error: the lease continues, so its own instance resumes the run (I9)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from dataclasses import dataclass, replace

import pytest

from passerelle.core.batch import DueClaim
from passerelle.core.commands import GetRecord, TurnAccepted
from passerelle.core.errors import WriteConflict
from passerelle.core.peer import StreamOutcome
from passerelle.core.ports.chance import Clock
from passerelle.core.task.status import Status
from passerelle.core.wire.json import JsonObject
from passerelle.core.wire.record import change
from passerelle.delegation.runs.active_run import ActiveRun
from passerelle.delegation.runs.loop import drive
from passerelle.delegation.runs.returns import return_answers
from passerelle.delegation.runs.stream import follow_stream
from passerelle.runtime.records.writes import AppendOptions
from tests.support.harness import ADA, Harness
from tests.support.waiting import wait_until

pytestmark = pytest.mark.anyio


@dataclass(slots=True)
class CountedClock:
    """Counts its readings: one or two for each request to the agent."""

    clock: Clock
    readings: int = 0

    def now_ms(self) -> int:
        """Implements ``core.ports.chance.Clock``."""
        self.readings += 1
        return self.clock.now_ms()


@pytest.mark.requirement("I9")
async def test_run_is_resumed_after_its_driver_failed(
    harness: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    harness.timeouts = replace(harness.timeouts, revive_s=0.02)
    await harness.restart()
    accepted = await harness.send("silent", wait="stream")
    await harness.until(accepted, Status.QUEUED)
    broken = harness.parts.dispatch.find(accepted.task_id)
    assert broken is not None

    async def fail(active: ActiveRun) -> bool:
        if active is broken:
            raise RuntimeError("an internal error")
        return await return_answers(active)

    monkeypatch.setattr("passerelle.delegation.runs.loop.return_answers", fail)
    broken.wake()

    def is_replaced() -> bool:
        return harness.parts.dispatch.find(accepted.task_id) not in (None, broken)

    await wait_until(is_replaced, 15, "another driver has the run")
    (remote,) = harness.peer.tasks.values()
    remote.status("COMPLETED")
    await harness.until(accepted, Status.COMPLETED)
    assert len(harness.peer.messages) == 1


async def test_run_dropped_before_its_driver_began_is_not_driven(
    harness: Harness,
) -> None:
    accepted = await harness.send("silent", wait="stream")
    await harness.until(accepted, Status.QUEUED)
    runs, task_id = harness.parts.dispatch.runs, accepted.task_id
    driver = runs.find(task_id)
    assert driver is not None
    await runs.end(task_id)
    runs.start(driver, drive(driver))
    # In the same iteration of the event loop: its task is cancelled before its first step.
    runs.drop(task_id)
    await wait_until(lambda: runs.find(task_id) is None, 5, "it has no driver")


async def test_task_is_followed_otherwise_after_its_stream_reader_failed(harness: Harness) -> None:
    accepted = await harness.send("silent", wait="stream")
    await harness.until(accepted, Status.QUEUED)
    driver = harness.parts.dispatch.find(accepted.task_id)
    assert driver is not None

    async def fail_to_read() -> AsyncGenerator[StreamOutcome, None]:
        if accepted.task_id:
            raise RuntimeError("an internal error")
        yield  # type: ignore[misc]  # an async generator

    await asyncio.wait_for(follow_stream(driver, fail_to_read()), 15)
    assert harness.parts.dispatch.find(accepted.task_id) is driver


async def test_run_of_unknown_outcome_survives_an_outage_of_its_agent(
    harness: Harness,
) -> None:
    harness.timeouts = replace(harness.timeouts, doubt_s=0.0, liveness_s=60.0)
    await harness.restart()
    harness.peer.hold()
    accepted = await harness.send("hello")
    await wait_until(lambda: harness.peer.messages, 15, "the peer has the message")
    await harness.restart()
    harness.peer.release_all()
    await wait_until(lambda: harness.peer.tasks, 15, "the agent has created its task")
    (remote,) = harness.peer.tasks.values()
    await asyncio.wait_for(remote.finished.wait(), 15)
    await harness.peer.stop()
    await harness.adopt(accepted)
    driver = harness.parts.dispatch.find(accepted.task_id)
    assert driver is not None
    counted = CountedClock(driver.deps.clock)
    driver.deps = change(driver.deps, clock=counted)
    await wait_until(lambda: counted.readings >= 6, 15, "the agent was polled repeatedly")
    wire: JsonObject = await harness.service.read(ADA, GetRecord(accepted.facade))
    assert wire["status"] == "running"
    await harness.peer.start()
    await harness.until(accepted, Status.COMPLETED)
    assert len(harness.peer.messages) == 1


async def lose_two(harness: Harness) -> list[TurnAccepted]:
    """Two messages of one context whose gateway ends before the agent, without a history, has answered."""
    harness.peer.keeps_history = False
    first, _ = await harness.talk("one")
    harness.peer.hold()
    turns = [
        await harness.send(f"number {number}", context_id=first.context_id) for number in range(2)
    ]
    await wait_until(lambda: len(harness.peer.messages) == 3, 15, "the peer has both")
    await harness.restart()
    harness.peer.release_all()
    await wait_until(lambda: len(harness.peer.tasks) == 3, 15, "the agent has created its tasks")
    return turns


async def test_two_lost_sends_of_one_context_are_not_matched_to_each_others_task(
    harness: Harness,
) -> None:
    turns = await lose_two(harness)
    for turn in turns:
        await harness.adopt(turn)
    for number, turn in enumerate(turns):
        record = await harness.until(turn, Status.FAILED)
        assert record.attempts[-1].remote_task_id is None, number


async def test_lost_send_still_counts_when_the_next_one_of_its_context_is_searched(
    harness: Harness,
) -> None:
    turns = await lose_two(harness)
    for turn in turns:
        await harness.adopt(turn)
        record = await harness.until(turn, Status.FAILED)
        assert record.attempts[-1].remote_task_id is None


@pytest.mark.requirement("I9")
async def test_due_row_claimed_elsewhere_does_not_stop_the_driver(
    harness: Harness,
) -> None:
    accepted = await harness.send("silent", wait="stream")
    await harness.until(accepted, Status.QUEUED)
    driver = harness.parts.dispatch.find(accepted.task_id)
    assert driver is not None
    with pytest.raises(WriteConflict):
        await driver.run.append(
            lambda _step: None,
            lambda _step: AppendOptions(claim=DueClaim(f"timeout:{accepted.task_id}", "1")),
        )
    (remote,) = harness.peer.tasks.values()
    remote.status("COMPLETED")
    await harness.until(accepted, Status.COMPLETED)


async def test_driver_woken_while_it_is_stopped_stops(harness: Harness) -> None:
    accepted = await harness.send("ask which")
    await harness.until(accepted, Status.WAITING_INPUT)
    driver = harness.parts.dispatch.find(accepted.task_id)
    assert driver is not None
    await wait_until(lambda: driver.proof_ms > 0, 15, "the driver has polled, and waits")
    driver.wake()
    # The stop request arrives in the iteration in which the waiting driver wakes.
    await asyncio.sleep(0)
    async with asyncio.timeout(15):
        await harness.parts.dispatch.drain()
    assert harness.parts.dispatch.find(accepted.task_id) is None
    await harness.start()
