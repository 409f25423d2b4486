"""Agents without updates: polls that show them alive are recorded, and a configured limit ends the wait."""

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


async def poll_often(harness: Harness) -> None:
    """Sets a gateway to poll and to record heartbeats at once."""
    harness.timeouts = replace(harness.timeouts, look_s=0.02, heartbeat_s=0.1)
    await harness.restart()


async def list_heartbeats(harness: Harness, accepted: TurnAccepted) -> list[Event]:
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
async def test_heartbeat_of_a_silent_agent_records_its_last_update(
    harness: Harness, word: str, wait: WaitMode, followed: str, *, subscribes: bool
) -> None:
    await poll_often(harness)
    harness.peer.subscribes = subscribes
    accepted = await harness.send(word, wait=wait)

    async def has_two_heartbeats() -> list[Event] | None:
        found = await list_heartbeats(harness, accepted)
        return found if len(found) > 1 else None

    found = await wait_until(has_two_heartbeats, 15, "two heartbeats are recorded")
    assert found is not None
    run = (await harness.record(accepted)).attempts[-1]
    news_at = run.news_at
    for event in found[1:]:
        heartbeat = cast("TaskProgress", event.fact.payload)
        assert (heartbeat.silent_since, heartbeat.followed_by) == (news_at, followed)
        assert event.fact.facade is None, "callers get no frame of it"
    assert parse_ms(run.last_seen_at) > parse_ms(news_at)
    (remote,) = harness.peer.tasks.values()
    remote.status("COMPLETED")
    record = await harness.until(accepted, Status.COMPLETED)
    assert record.attempts[-1].silent_since is None
    if wait == "stream":
        assert harness.peer.count("SubscribeToTask") == 0, "its stream was never replaced"


@pytest.mark.requirement("I6")
async def test_stream_that_has_missed_a_frame_is_replaced_by_polling(harness: Harness) -> None:
    await poll_often(harness)
    accepted = await harness.send("silent", wait="stream")
    await harness.until(accepted, Status.QUEUED)
    (remote,) = harness.peer.tasks.values()
    dropped: list[JsonObject] = []
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(remote, "tell", dropped.append)
        remote.status("COMPLETED", "and nobody was told")
    await harness.until(accepted, Status.COMPLETED)
    assert "and nobody was told" in str(await harness.read(accepted))


@pytest.mark.requirement("ST-14", "CF-12", "TEV-13", "I9")
async def test_live_agent_without_updates_times_out_by_its_idle_limit(harness: Harness) -> None:
    harness.policy = RetryPolicy(idle_timeout_ms=5_000)
    await poll_often(harness)
    accepted = await harness.send("silent", wait="stream")
    await harness.until(accepted, Status.QUEUED)
    watching = asyncio.create_task(harness.watch(accepted))
    await wait_until(lambda: harness.peer.count("GetTask"), 15, "it is polled")
    await harness.run_due("idle", accepted.task_id, after_ms=5_000)
    record = await harness.until(accepted, Status.TIMED_OUT)
    (timed_out,) = [
        event.fact.payload
        for event in await harness.events(accepted)
        if isinstance(event.fact.payload, TaskTimedOut)
    ]
    assert timed_out == TaskTimedOut("idle", 5_000)
    assert record.attempts[-1].status is Status.TIMED_OUT
    assert "sent no update for 5 s" in str((await watching)[-1])
    await wait_until(lambda: harness.peer.count("CancelTask") == 1, 15, "the agent has the cancel")
    due = await harness.due(accepted.task_id)
    assert not {f"idle:{accepted.task_id}", f"timeout:{accepted.task_id}"} & set(due)


@pytest.mark.requirement("ST-14")
async def test_update_and_open_request_of_an_agent_postpone_its_idle_limit(
    harness: Harness,
) -> None:
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
async def test_repeated_status_keeps_the_agent_alive_and_is_stored_rarely(
    harness: Harness, *, stamps: bool
) -> None:
    harness.policy = RetryPolicy(idle_timeout_ms=8_000)
    harness.timeouts = replace(harness.timeouts, look_s=60)
    accepted = await harness.send("silent", wait="stream")
    await harness.until(accepted, Status.QUEUED)
    (remote,) = harness.peer.tasks.values()
    repeats = 0

    async def repeat_status(times: int) -> None:
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

    async def is_stored() -> bool:
        run = (await harness.record(accepted)).run
        return run is not None and parse_ms(run.news_at) >= at_ms

    for _ in range(5):
        # Twice the idle limit in total: one repeat per quarter of it is stored.
        harness.clock.ahead_ms += 3_500
        at_ms = harness.clock.now_ms()
        await repeat_status(40)
        await wait_until(is_stored, 10, "one repeat is stored")
    await harness.run_due("idle", accepted.task_id, after_ms=6_000)
    assert (await harness.record(accepted)).status is Status.RUNNING
    stored = [
        event
        for event in await harness.events(accepted)
        if event.fact.frame is not None and b"TASK_STATE_WORKING" in event.fact.frame
    ]
    assert 5 <= len(stored) <= 10
    assert repeats == 200
    remote.artifact([{"text": "done"}])
    remote.status("COMPLETED")
    await harness.until(accepted, Status.COMPLETED)


@pytest.mark.requirement("CMD-8", "ST-10")
async def test_total_limit_is_suspended_while_a_task_is_paused(harness: Harness) -> None:
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


async def test_idle_limit_of_a_run_taken_over_is_left_to_the_new_driver(harness: Harness) -> None:
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
