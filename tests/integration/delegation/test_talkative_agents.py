"""Agents that bring more than they may: read slower, in turns with others, and stopped at once."""

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
from tests.support.scripted_tasks import Frame, RemoteTask, Script, Turn
from tests.support.waiting import wait_until

pytestmark = pytest.mark.anyio

MANY = 20_000


def talk(statuses: int) -> Script:
    """A peer that says so many words as fast as it can, and is done."""

    async def go(turn: Turn) -> None:
        task = await turn.open()
        for number in range(statuses):
            turn.transcript.write(say_word(task, number))
            if number % 100 == 0:
                await asyncio.sleep(0)
        await turn.status("COMPLETED")

    return go


def say_word(task: RemoteTask, number: int, more: str = "") -> Frame:
    """A status with words like no other, and ``more`` of them."""
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
    return Frame({"statusUpdate": update})


def find_driver(harness: Harness, accepted: TurnAccepted) -> ActiveRun:
    driver = harness.parts.dispatch.find(accepted.task_id)
    assert driver is not None
    return driver


async def await_throttle(harness: Harness, accepted: TurnAccepted) -> ActiveRun:
    driver = find_driver(harness, accepted)
    await wait_until(lambda: driver.is_throttled, 10, "the stream is not read any more")
    return driver


@pytest.fixture
async def impatient(
    engine_server: Server, tmp_path: Path, anyio_backend: str
) -> AsyncGenerator[Harness]:
    """A house whose agent is given up after less than a second of silence."""
    async with open_harness(
        engine_server.url, tmp_path / "blobs", adjust=lambda one: replace(one, idle_timeout_s=0.8)
    ) as opened:
        yield opened


async def test_a_callers_tasks_end_while_the_agent_of_another_talks_and_talks(
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
    # A second's worth at once, the rate, what a timer is late by; and the facts of a task that begins.
    assert stored < 200 * (lasted_s + 1.1) + 50
    await street.cancel(talkative)
    await street.until(talkative, Status.CANCELLED)


async def test_a_cancel_is_heard_at_once_while_the_stream_is_not_read(harness: Harness) -> None:
    harness.limits = OutputLimits(events_per_s=2)
    harness.peer.next(talk(1_000))
    accepted = await harness.send("go", wait="stream")
    await await_throttle(harness, accepted)
    await harness.cancel(accepted)
    assert harness.peer.count("CancelTask") == 1
    # The rest of the stream would take minutes.
    await harness.until(accepted, Status.CANCELLED)


async def test_a_cancel_is_heard_while_frames_come_faster_than_they_are_stored(
    harness: Harness,
) -> None:
    async def store_slowly(batch: Batch) -> None:
        if len(batch.events) > 4:  # what the agent says, and not what its caller wants
            await asyncio.sleep(0.05)

    harness.peer.next(talk(MANY))
    accepted = await harness.send("go", wait="stream")
    await harness.until(accepted, Status.RUNNING)
    harness.log.before_append = store_slowly
    await harness.cancel(accepted)
    assert harness.peer.count("CancelTask") == 1
    # To store all that was said would take a minute.
    await harness.until(accepted, Status.CANCELLED)
    assert len(await harness.events(accepted)) < MANY / 10


async def test_a_cancel_has_its_turn_among_appends_that_follow_each_other_without_a_pause(
    harness: Harness,
) -> None:
    tried: list[str] = []

    async def be_slower_than_the_driver(batch: Batch) -> None:
        if any(event.type == EventType.TASK_CANCEL_REQUESTED for event in batch.events):
            tried.append(batch.op)
            # What is said meanwhile is stored before it.
            stored = len(harness.log.stored)
            with suppress(TimeoutError):
                async with asyncio.timeout(0.05):
                    while len(harness.log.stored) == stored:
                        await asyncio.sleep(0)

    harness.limits = OutputLimits(events_per_s=10**9)
    harness.peer.next(talk(MANY))
    accepted = await harness.send("go", wait="stream")
    await harness.until(accepted, Status.RUNNING)
    harness.log.before_append = be_slower_than_the_driver
    await harness.cancel(accepted)
    assert 1 < len(tried) < 4
    assert harness.peer.count("CancelTask") == 1
    await harness.until(accepted, Status.CANCELLED)


async def test_time_in_which_nothing_is_read_is_no_silence_of_the_agent(impatient: Harness) -> None:
    impatient.limits = OutputLimits(events_per_s=1)
    impatient.peer.next(talk(3))
    accepted = await impatient.send("go", wait="stream")
    driver = await await_throttle(impatient, accepted)
    async with asyncio.timeout(10):
        while not driver.run.has_ended():
            await driver.run.wait_for_change()
    # It was one stream all the time, and nobody had to ask.
    assert {one.method for one in impatient.peer.requests} == {"SendStreamingMessage"}
    task = await impatient.read(accepted)
    said = [one["parts"] for one in objects_at(task, "history")]
    assert said[1:] == [[{"text": f"word {number}"}] for number in range(3)]


async def test_the_idle_limit_of_a_run_waits_while_its_stream_is_not_read(harness: Harness) -> None:
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


async def test_a_run_that_brings_much_takes_turns_and_an_ordinary_one_never_does(
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


async def test_turns_are_for_others_and_none_is_taken_where_there_are_none(
    street: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    taken = note_turns(street, monkeypatch)
    street.peer.next(talk(300), talk(300))
    await street.until(await street.send("go", wait="stream", who=ADA), Status.COMPLETED)
    assert taken == []
    street.parts.dispatch.note_caller(BOB)
    await street.until(await street.send("go", wait="stream", who=ADA), Status.COMPLETED)
    assert set(taken) == {("default/ada", "echo")}


async def test_runs_of_a_caller_take_turns_that_bring_much_only_together(
    street: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    taken = note_turns(street, monkeypatch)
    # All that is there is taken at once, so each run by itself is ordinary.
    # Together it is more than others may have in several seconds, however slowly this machine reads it.
    talkers = [Steps(" " * 400_000) for _ in range(12)]
    for steps in talkers:
        street.peer.next(steps.talk)
    runs = [await street.send("go", wait="stream", who=ADA) for _ in talkers]
    ordinary = Steps()
    street.peers["other"].next(ordinary.talk)
    quiet = await street.send("hello", agent="other", who=BOB, wait="stream")
    for number in range(1, 4):
        for steps in (*talkers, ordinary):
            steps.wants.put_nowait(number)
        for run in (*runs, quiet):
            await await_word(street, run, number)
    assert set(taken) == {("default/ada", "echo")}
    for steps in (*talkers, ordinary):
        steps.wants.put_nowait(None)
    for run in (*runs, quiet):
        await street.until(run, Status.COMPLETED)


def note_turns(harness: Harness, monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, str]]:
    """Whoever takes turns from now on: caller and agent."""
    turns = harness.parts.dispatch.scheduler
    take, taken = turns.take, list[tuple[str, str]]()

    async def note(caller: str, agent: str) -> None:
        taken.append((caller, agent))
        await take(caller, agent)

    monkeypatch.setattr(turns, "take", note)
    return taken


class Steps:
    """A peer that says a word when the test wants it, and no more before that is stored."""

    def __init__(self, more: str = "") -> None:
        self.wants: asyncio.Queue[int | None] = asyncio.Queue()
        """Numbers of words; None at the end."""
        self.more = more

    async def talk(self, turn: Turn) -> None:
        task = await turn.open()
        while (number := await self.wants.get()) is not None:
            turn.transcript.write(say_word(task, number, self.more))
        await turn.status("COMPLETED")


async def await_word(harness: Harness, run: TurnAccepted, number: int) -> None:
    driver = find_driver(harness, run)

    def is_stored() -> bool:
        said = object_at(object_at(driver.run.content or {}, "status"), "message")
        return text_at(said, "messageId").endswith(f"word-{number}")

    await wait_until(is_stored, 10, f"word {number} is stored")
