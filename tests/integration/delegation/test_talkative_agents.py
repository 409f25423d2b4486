"""Agents that send more than their limits: their streams are throttled, take turns, and are cancelled at once."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest

from passerelle.a2a_mapping.members import object_at, objects_at, text_at
from passerelle.core.batch import Batch
from passerelle.core.commands import TurnAccepted
from passerelle.core.event_type import EventType
from passerelle.core.task.status import Status
from passerelle.core.wire.json import JsonObject
from passerelle.delegation.runs.active_run import ActiveRun
from passerelle.delegation.runs.volume import OutputLimits
from tests.support.engine import Server
from tests.support.harness import ADA, BOB, Harness, open_harness
from tests.support.scripted_tasks import RemoteTask, ScriptedFrame, Turn, TurnScript
from tests.support.waiting import wait_until

pytestmark = pytest.mark.anyio

MANY = 20_000


def talk(statuses: int) -> TurnScript:
    """An agent that sends this number of statuses as fast as it can, and completes."""

    async def run(turn: Turn) -> None:
        task = await turn.open()
        for number in range(statuses):
            turn.transcript.write(make_status(task, number))
            if number % 100 == 0:
                await asyncio.sleep(0)
        await turn.status("COMPLETED")

    return run


def make_status(task: RemoteTask, number: int, more: str = "") -> ScriptedFrame:
    """A status with a unique text, followed by ``more``."""
    message: JsonObject = {
        "messageId": f"{task.id}-word-{number}",
        "role": "ROLE_AGENT",
        "parts": [{"text": f"word {number}{more}"}],
    }
    status: JsonObject = {
        "state": "TASK_STATE_WORKING",
        "timestamp": task.ticks.stamp(),
        "message": message,
    }
    update: JsonObject = {"taskId": task.id, "contextId": task.context_id, "status": status}
    return ScriptedFrame({"statusUpdate": update})


def find_driver(harness: Harness, accepted: TurnAccepted) -> ActiveRun:
    driver = harness.parts.dispatch.find(accepted.task_id)
    assert driver is not None
    return driver


async def await_throttle(harness: Harness, accepted: TurnAccepted) -> ActiveRun:
    driver = find_driver(harness, accepted)
    await wait_until(lambda: driver.is_throttled, 10, "the stream is throttled")
    return driver


@pytest.fixture
async def impatient(
    engine_server: Server, tmp_path: Path, anyio_backend: str
) -> AsyncGenerator[Harness]:
    """A harness that gives its agent up after 0.8 s without data."""
    async with open_harness(
        engine_server.url, tmp_path / "blobs", adjust=lambda one: replace(one, idle_timeout_s=0.8)
    ) as opened:
        yield opened


async def test_flooding_agent_of_one_caller_does_not_delay_another_caller(
    street: Harness,
) -> None:
    loop = asyncio.get_running_loop()
    street.limits = OutputLimits(events_per_s=200)
    street.peer.next(talk(MANY))
    began_s = loop.time()
    talkative = await street.send("go", wait="stream")
    await await_throttle(street, talkative)
    for _ in range(10):
        accepted = await street.send("hello", agent="other", who=BOB)
        answer = await street.await_answer(accepted, who=BOB)
        assert answer["task"]
    assert (await street.record(talkative)).status is Status.RUNNING
    stored = len(await street.events(talkative))
    lasted_s = loop.time() - began_s
    # One second's worth at once, the rate, timer delays, and the facts of a task that begins.
    assert stored < 200 * (lasted_s + 1.1) + 50
    await street.cancel(talkative)
    await street.until(talkative, Status.CANCELLED)


async def test_cancel_is_handled_at_once_while_the_stream_is_throttled(harness: Harness) -> None:
    harness.limits = OutputLimits(events_per_s=2)
    harness.peer.next(talk(1_000))
    accepted = await harness.send("go", wait="stream")
    await await_throttle(harness, accepted)
    await harness.cancel(accepted)
    assert harness.peer.count("CancelTask") == 1
    # The rest of the stream would take minutes.
    await harness.until(accepted, Status.CANCELLED)


async def test_cancel_is_handled_while_frames_arrive_faster_than_they_are_stored(
    harness: Harness,
) -> None:
    async def store_slowly(batch: Batch) -> None:
        if len(batch.events) > 4:  # appends of the agent's output, not of the caller's cancel
            await asyncio.sleep(0.05)

    harness.peer.next(talk(MANY))
    accepted = await harness.send("go", wait="stream")
    await harness.until(accepted, Status.RUNNING)
    harness.log.before_append = store_slowly
    await harness.cancel(accepted)
    assert harness.peer.count("CancelTask") == 1
    # Storing all output would take a minute.
    await harness.until(accepted, Status.CANCELLED)
    assert len(await harness.events(accepted)) < MANY / 10


async def test_cancel_is_stored_between_back_to_back_appends(
    harness: Harness,
) -> None:
    tried: list[str] = []

    async def wait_for_a_driver_append(batch: Batch) -> None:
        if any(event.type == EventType.TASK_CANCEL_REQUESTED for event in batch.events):
            tried.append(batch.op)
            # Output that arrives meanwhile is stored first.
            stored = len(harness.log.stored)
            with suppress(TimeoutError):
                async with asyncio.timeout(0.05):
                    while len(harness.log.stored) == stored:
                        await asyncio.sleep(0)

    harness.limits = OutputLimits(events_per_s=10**9)
    harness.peer.next(talk(MANY))
    accepted = await harness.send("go", wait="stream")
    await harness.until(accepted, Status.RUNNING)
    harness.log.before_append = wait_for_a_driver_append
    await harness.cancel(accepted)
    assert 1 < len(tried) < 4
    assert harness.peer.count("CancelTask") == 1
    await harness.until(accepted, Status.CANCELLED)


async def test_throttled_time_does_not_count_as_silence_of_the_agent(impatient: Harness) -> None:
    impatient.limits = OutputLimits(events_per_s=1)
    impatient.peer.next(talk(3))
    accepted = await impatient.send("go", wait="stream")
    driver = await await_throttle(impatient, accepted)
    async with asyncio.timeout(10):
        while not driver.run.has_ended():
            await driver.run.wait_for_change()
    # It was one stream all the time, without a poll.
    assert {one.method for one in impatient.peer.requests} == {"SendStreamingMessage"}
    task = await impatient.read(accepted)
    sent_parts = [one["parts"] for one in objects_at(task, "history")]
    assert sent_parts[1:] == [[{"text": f"word {number}"}] for number in range(3)]


async def test_idle_limit_of_a_run_is_suspended_while_its_stream_is_throttled(
    harness: Harness,
) -> None:
    harness.policy = replace(harness.policy, idle_timeout_ms=60_000)
    harness.limits = OutputLimits(events_per_s=1)
    harness.peer.next(talk(50))
    accepted = await harness.send("go", wait="stream")
    await await_throttle(harness, accepted)
    await harness.run_due("idle", accepted.task_id, after_ms=61_000)
    assert (await harness.record(accepted)).status is Status.RUNNING
    assert f"idle:{accepted.task_id}" in await harness.due(accepted.task_id)
    await harness.cancel(accepted)
    await harness.until(accepted, Status.CANCELLED)


async def test_run_with_much_output_takes_turns_and_an_ordinary_one_does_not(
    street: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    taken = note_turns(street, monkeypatch)
    ordinary = await street.send("chunks 5", agent="other", who=BOB, wait="stream")
    await street.until(ordinary, Status.COMPLETED)
    assert taken == []
    street.parts.dispatch.note_caller(BOB)
    street.peer.next(talk(300))
    await street.until(await street.send("go", wait="stream", who=ADA), Status.COMPLETED)
    assert set(taken) == {("default/ada", "echo")}


async def test_turns_are_taken_only_if_there_are_other_callers(
    street: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    taken = note_turns(street, monkeypatch)
    street.peer.next(talk(300), talk(300))
    await street.until(await street.send("go", wait="stream", who=ADA), Status.COMPLETED)
    assert taken == []
    street.parts.dispatch.note_caller(BOB)
    await street.until(await street.send("go", wait="stream", who=ADA), Status.COMPLETED)
    assert set(taken) == {("default/ada", "echo")}


async def test_runs_of_a_caller_with_much_output_in_total_take_turns(
    street: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    taken = note_turns(street, monkeypatch)
    # Each stream is read in one go, so each run alone is ordinary. Together they are more than their share for several
    # seconds, however slowly this machine reads them.
    streams = [Steps(" " * 400_000) for _ in range(12)]
    for steps in streams:
        street.peer.next(steps.talk)
    runs = [await street.send("go", wait="stream", who=ADA) for _ in streams]
    ordinary = Steps()
    street.peers["other"].next(ordinary.talk)
    quiet = await street.send("hello", agent="other", who=BOB, wait="stream")
    for number in range(1, 4):
        for steps in (*streams, ordinary):
            steps.requested.put_nowait(number)
        for run in (*runs, quiet):
            await await_status(street, run, number)
    assert set(taken) == {("default/ada", "echo")}
    for steps in (*streams, ordinary):
        steps.requested.put_nowait(None)
    for run in (*runs, quiet):
        await street.until(run, Status.COMPLETED)


def note_turns(harness: Harness, monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, str]]:
    """The turns taken from now on: caller and agent."""
    turns = harness.parts.dispatch.scheduler
    take, taken = turns.take, list[tuple[str, str]]()

    async def note(caller: str, agent: str) -> None:
        taken.append((caller, agent))
        await take(caller, agent)

    monkeypatch.setattr(turns, "take", note)
    return taken


class Steps:
    """An agent that sends a status when the test asks for it, after the previous one is stored."""

    def __init__(self, more: str = "") -> None:
        self.requested: asyncio.Queue[int | None] = asyncio.Queue()
        """Numbers of statuses; None ends the task."""
        self.more = more

    async def talk(self, turn: Turn) -> None:
        task = await turn.open()
        while (number := await self.requested.get()) is not None:
            turn.transcript.write(make_status(task, number, self.more))
        await turn.status("COMPLETED")


async def await_status(harness: Harness, run: TurnAccepted, number: int) -> None:
    driver = find_driver(harness, run)

    def is_stored() -> bool:
        message = object_at(object_at(driver.run.content or {}, "status"), "message")
        return text_at(message, "messageId").endswith(f"word-{number}")

    await wait_until(is_stored, 10, f"word {number} is stored")
