"""Peers that say nothing: their life is a fact, and a limit ends the waiting where one is set."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import cast

import pytest

from passerelle.core.commands import TurnAccepted, WaitMode
from passerelle.core.events import Event
from passerelle.core.facts import RetryPolicy
from passerelle.core.payloads.task import TaskProgress, TaskTimedOut
from passerelle.core.task.status import Status
from passerelle.core.wire.json import JsonObject
from passerelle.core.wire.times import parse_ms
from tests.support.control_client import ControlClient
from tests.support.harness import Harness
from tests.support.waiting import wait_until

pytestmark = pytest.mark.anyio


async def be_watchful(harness: Harness) -> None:
    """A gateway that looks and tells at once."""
    harness.timeouts = replace(harness.timeouts, look_s=0.02, heartbeat_s=0.1)
    await harness.restart()


async def beats(harness: Harness, accepted: TurnAccepted) -> list[Event]:
    return [
        event
        for event in await harness.events(accepted)
        if isinstance(event.fact.payload, TaskProgress) and event.fact.payload.silent_since
    ]


@pytest.mark.requirement("AP-6", "ST-19")
@pytest.mark.parametrize(
    ("word", "wait", "subscribes", "followed"),
    [
        ("silent", "stream", True, "streaming"),
        ("close", "unary", True, "subscription"),
        ("close", "unary", False, "polling"),
    ],
)
async def test_silent_agent_that_lives_is_told_of_with_when_it_said_something_last(
    harness: Harness, word: str, wait: WaitMode, followed: str, *, subscribes: bool
) -> None:
    await be_watchful(harness)
    harness.peer.subscribes = subscribes
    accepted = await harness.send(word, wait=wait)

    async def has_beaten() -> list[Event] | None:
        found = await beats(harness, accepted)
        return found if len(found) > 1 else None

    found = await wait_until(has_beaten, 15, "it is told of twice")
    assert found is not None
    run = (await harness.record(accepted)).attempts[-1]
    said_at = run.news_at
    for event in found[1:]:
        beat = cast("TaskProgress", event.fact.payload)
        assert (beat.silent_since, beat.followed_by) == (said_at, followed)
        assert event.fact.facade is None, "no caller is shown a frame of it"
    assert parse_ms(run.last_seen_at) > parse_ms(said_at)
    (remote,) = harness.peer.tasks.values()
    remote.status("COMPLETED")
    record = await harness.until(accepted, Status.COMPLETED)
    assert record.attempts[-1].silent_since is None
    if wait == "stream":
        assert harness.peer.count("SubscribeToTask") == 0, "its stream was never left"


@pytest.mark.requirement("I6")
async def test_stream_that_has_missed_something_is_left_for_a_question(harness: Harness) -> None:
    await be_watchful(harness)
    accepted = await harness.send("silent", wait="stream")
    await harness.until(accepted, Status.QUEUED)
    (remote,) = harness.peer.tasks.values()
    swallowed: list[JsonObject] = []
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(remote, "tell", swallowed.append)
        remote.status("COMPLETED", "and nobody was told")
    await harness.until(accepted, Status.COMPLETED)
    assert "and nobody was told" in str(await harness.read(accepted))


@pytest.mark.requirement("ST-14", "CF-12", "TEV-13", "I9")
async def test_agent_without_news_times_out_by_its_limit_though_it_lives(harness: Harness) -> None:
    harness.policy = RetryPolicy(idle_timeout_ms=5_000)
    await be_watchful(harness)
    accepted = await harness.send("silent", wait="stream")
    await harness.until(accepted, Status.QUEUED)
    watching = asyncio.create_task(harness.watch(accepted))
    await wait_until(lambda: harness.peer.count("GetTask"), 15, "it is asked whether it lives")
    await harness.run_due("idle", accepted.task_id, after_ms=5_000)
    record = await harness.until(accepted, Status.TIMED_OUT)
    (told,) = [
        event.fact.payload
        for event in await harness.events(accepted)
        if isinstance(event.fact.payload, TaskTimedOut)
    ]
    assert told == TaskTimedOut("idle", 5_000)
    assert record.attempts[-1].status is Status.TIMED_OUT
    assert "sent no update for 5 s" in str((await watching)[-1])
    await wait_until(lambda: harness.peer.count("CancelTask") == 1, 15, "the peer was told to stop")
    due = await harness.due(accepted.task_id)
    assert not {f"idle:{accepted.task_id}", f"timeout:{accepted.task_id}"} & set(due)


@pytest.mark.requirement("ST-14")
async def test_news_and_the_questions_of_an_agent_put_its_limit_off(harness: Harness) -> None:
    harness.policy = RetryPolicy(idle_timeout_ms=5_000)
    accepted = await harness.send("silent", wait="stream")
    await harness.until(accepted, Status.QUEUED)
    member = f"idle:{accepted.task_id}"
    (remote,) = harness.peer.tasks.values()
    harness.clock.ahead_ms += 4_000
    remote.status("WORKING")
    record = await harness.until(accepted, Status.RUNNING)
    await harness.run_due("idle", accepted.task_id, after_ms=1_000)
    end_ms = parse_ms(record.attempts[-1].last_seen_at) + 5_000
    assert int((await harness.due(accepted.task_id))[member]) == end_ms
    remote.status("INPUT_REQUIRED", "which?")
    await harness.until(accepted, Status.WAITING_INPUT)
    await harness.run_due("idle", accepted.task_id, after_ms=60_000)
    assert (await harness.record(accepted)).status is Status.WAITING_INPUT
    assert int((await harness.due(accepted.task_id))[member]) > harness.clock.now_ms()


@pytest.mark.requirement("ST-14", "AP-6")
@pytest.mark.parametrize("stamps", [True, False], ids=["stamped", "to the letter"])
async def test_an_agent_that_says_the_same_again_lives_and_fills_no_history(
    harness: Harness, *, stamps: bool
) -> None:
    harness.policy = RetryPolicy(idle_timeout_ms=8_000)
    harness.timeouts = replace(harness.timeouts, look_s=60)
    accepted = await harness.send("silent", wait="stream")
    await harness.until(accepted, Status.QUEUED)
    (remote,) = harness.peer.tasks.values()
    repeats = 0

    async def say_again(times: int) -> None:
        nonlocal repeats
        for _ in range(times):
            status: JsonObject = {"state": "TASK_STATE_WORKING"}
            if stamps:
                status["timestamp"] = remote.ticks.stamp()
            repeats += 1
            remote.record["status"] = status
            remote.tell(
                {
                    "statusUpdate": {
                        "taskId": remote.id,
                        "contextId": remote.context_id,
                        "status": status,
                    }
                }
            )

    async def is_heard() -> bool:
        run = (await harness.record(accepted)).run
        return run is not None and parse_ms(run.news_at) >= at_ms

    for _ in range(5):
        # Twice the idle limit in all: once in a quarter of it is enough.
        harness.clock.ahead_ms += 3_500
        at_ms = harness.clock.now_ms()
        await say_again(40)
        await wait_until(is_heard, 10, "one of them is stored")
    await harness.run_due("idle", accepted.task_id, after_ms=6_000)
    assert (await harness.record(accepted)).status is Status.RUNNING
    said = [
        event
        for event in await harness.events(accepted)
        if event.fact.frame is not None and b"TASK_STATE_WORKING" in event.fact.frame
    ]
    assert 5 <= len(said) <= 10
    assert repeats == 200
    remote.artifact([{"text": "done"}])
    remote.status("COMPLETED")
    await harness.until(accepted, Status.COMPLETED)


@pytest.mark.requirement("CMD-8", "ST-10")
async def test_total_limit_stands_still_while_a_task_is_paused(harness: Harness) -> None:
    control = ControlClient(harness)
    harness.policy = RetryPolicy(total_timeout_ms=60_000)
    accepted = await harness.send("silent", wait="stream")
    task_id = accepted.task_id
    await harness.until(accepted, Status.QUEUED)
    harness.clock.ahead_ms += 20_000
    await control.do("pause_task", taskId=task_id)
    await harness.run_due("timeout", task_id, after_ms=600_000)
    assert (await harness.record(accepted)).status is Status.PAUSED
    await control.do("resume_task", taskId=task_id)
    held_ms = (await harness.record(accepted)).attempts[-1].held_ms
    assert 600_000 <= held_ms < 605_000
    await harness.run_due("timeout", task_id, after_ms=39_000 - 5_000)
    assert (await harness.record(accepted)).status is Status.RUNNING
    await harness.run_due("timeout", task_id, after_ms=7_000)
    await harness.until(accepted, Status.TIMED_OUT)


async def test_limit_of_a_run_that_another_instance_has_taken_is_left_to_that(
    harness: Harness,
) -> None:
    harness.policy = RetryPolicy(idle_timeout_ms=5_000)
    accepted = await harness.send("silent", wait="stream")
    await harness.until(accepted, Status.QUEUED)
    driver = harness.parts.dispatch.find(accepted.task_id)
    assert driver is not None
    own = driver.run.driver
    assert own is not None
    driver.run.driver = replace(own, number=own.number + 1)
    await harness.run_due("idle", accepted.task_id, after_ms=5_000)
    assert f"idle:{accepted.task_id}" in await harness.due(accepted.task_id)
    assert (await harness.record(accepted)).status is Status.QUEUED
    assert harness.peer.count("CancelTask") == 0
