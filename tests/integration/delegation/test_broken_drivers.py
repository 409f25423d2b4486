"""A driver that breaks by a fault of ours: the lease lives on, so its own instance takes the run up again (I9)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from dataclasses import dataclass, replace

import pytest

from passerelle.core.batch import DueClaim
from passerelle.core.commands import GetRecord
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
    """A clock that knows how often it was read: once or twice for each look at the peer."""

    clock: Clock
    readings: int = 0

    def now_ms(self) -> int:
        """Implements ``core.ports.chance.Clock``."""
        self.readings += 1
        return self.clock.now_ms()


@pytest.mark.requirement("I9")
async def test_run_whose_driver_breaks_is_taken_up_again(
    harness: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    harness.timeouts = replace(harness.timeouts, revive_s=0.02)
    await harness.restart()
    accepted = await harness.send("silent", wait="stream")
    await harness.until(accepted, Status.QUEUED)
    broken = harness.parts.dispatch.find(accepted.task_id)
    assert broken is not None

    async def break_down(active: ActiveRun) -> bool:
        if active is broken:
            raise RuntimeError("a fault of ours")
        return await return_answers(active)

    monkeypatch.setattr("passerelle.delegation.runs.loop.return_answers", break_down)
    broken.wake()

    def is_replaced() -> bool:
        return harness.parts.dispatch.find(accepted.task_id) not in (None, broken)

    await wait_until(is_replaced, 15, "another driver has the run")
    (remote,) = harness.peer.tasks.values()
    remote.status("COMPLETED")
    await harness.until(accepted, Status.COMPLETED)
    assert len(harness.peer.messages) == 1


async def test_run_that_is_dropped_before_its_driver_has_begun_is_not_driven_here(
    harness: Harness,
) -> None:
    accepted = await harness.send("silent", wait="stream")
    await harness.until(accepted, Status.QUEUED)
    runs, task_id = harness.parts.dispatch.runs, accepted.task_id
    driver = runs.find(task_id)
    assert driver is not None
    await runs.end(task_id)
    runs.start(driver, drive(driver))
    # In the same turn of the loop: its task is cancelled before its first step.
    runs.drop(task_id)
    await wait_until(lambda: runs.find(task_id) is None, 5, "nobody drives it here")


async def test_stream_whose_reader_breaks_is_followed_in_another_way(harness: Harness) -> None:
    accepted = await harness.send("silent", wait="stream")
    await harness.until(accepted, Status.QUEUED)
    driver = harness.parts.dispatch.find(accepted.task_id)
    assert driver is not None

    async def break_off() -> AsyncGenerator[StreamOutcome, None]:
        if accepted.task_id:
            raise RuntimeError("a fault of ours")
        yield  # type: ignore[misc]  # an async generator

    await asyncio.wait_for(follow_stream(driver, break_off()), 15)
    assert harness.parts.dispatch.find(accepted.task_id) is driver


async def test_run_that_nobody_can_find_out_about_outlives_a_peer_that_is_away(
    harness: Harness,
) -> None:
    harness.timeouts = replace(harness.timeouts, doubt_s=0.0, liveness_s=60.0)
    await harness.restart()
    harness.peer.hold()
    accepted = await harness.send("hello")
    await wait_until(lambda: harness.peer.messages, 15, "the peer has the message")
    await harness.restart()
    harness.peer.release_all()
    await wait_until(lambda: harness.peer.tasks, 15, "the peer has made its task")
    (remote,) = harness.peer.tasks.values()
    await asyncio.wait_for(remote.finished.wait(), 15)
    await harness.peer.stop()
    await harness.adopt(accepted)
    driver = harness.parts.dispatch.find(accepted.task_id)
    assert driver is not None
    watched = CountedClock(driver.deps.clock)
    driver.deps = change(driver.deps, clock=watched)
    await wait_until(lambda: watched.readings >= 6, 15, "the peer was asked again and again")
    wire: JsonObject = await harness.service.read(ADA, GetRecord(accepted.facade))
    assert wire["status"] == "running"
    await harness.peer.start()
    await harness.until(accepted, Status.COMPLETED)
    assert len(harness.peer.messages) == 1


async def test_two_lost_sends_of_one_context_never_take_each_others_task(harness: Harness) -> None:
    harness.peer.keeps_history = False
    first, _ = await harness.talk("one")
    harness.peer.hold()
    turns = [
        await harness.send(f"number {number}", context_id=first.context_id) for number in range(2)
    ]
    await wait_until(lambda: len(harness.peer.messages) == 3, 15, "the peer has both")
    await harness.restart()
    harness.peer.release_all()
    await wait_until(lambda: len(harness.peer.tasks) == 3, 15, "the peer has made its tasks")
    for turn in turns:
        await harness.adopt(turn)
    for number, turn in enumerate(turns):
        record = await harness.until(turn, Status.FAILED)
        assert record.attempts[-1].remote_task_id is None, number


async def test_a_lost_send_is_not_forgotten_when_the_next_one_of_its_context_is_looked_for(
    harness: Harness,
) -> None:
    harness.peer.keeps_history = False
    first, _ = await harness.talk("one")
    harness.peer.hold()
    turns = [
        await harness.send(f"number {number}", context_id=first.context_id) for number in range(2)
    ]
    await wait_until(lambda: len(harness.peer.messages) == 3, 15, "the peer has both")
    await harness.restart()
    harness.peer.release_all()
    await wait_until(lambda: len(harness.peer.tasks) == 3, 15, "the peer has made its tasks")
    for turn in turns:
        await harness.adopt(turn)
        record = await harness.until(turn, Status.FAILED)
        assert record.attempts[-1].remote_task_id is None


@pytest.mark.requirement("I9")
async def test_due_row_that_somebody_else_has_claimed_takes_no_run_from_its_driver(
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


async def test_driver_that_is_woken_while_it_is_stopped_stops(harness: Harness) -> None:
    accepted = await harness.send("ask which")
    await harness.until(accepted, Status.WAITING_INPUT)
    driver = harness.parts.dispatch.find(accepted.task_id)
    assert driver is not None
    await wait_until(lambda: driver.proof_ms > 0, 15, "the driver has looked, and rests")
    driver.wake()
    # The wish to stop meets the waiting driver in the tick in which it wakes.
    await asyncio.sleep(0)
    async with asyncio.timeout(15):
        await harness.parts.dispatch.drain()
    assert harness.parts.dispatch.find(accepted.task_id) is None
    await harness.start()
