"""How a task ends, and what does not end it: closed streams, lost connections, forgetful agents, limits, cancels."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import cast

import pytest

from passerelle.core.batch import Batch
from passerelle.core.commands import GetAction, GetRecord
from passerelle.core.errors import NotCancelable
from passerelle.core.facts import RetryPolicy
from passerelle.core.task.status import Status
from passerelle.core.wire.json import JsonObject
from passerelle.delegation.runs.peer_calls import poll_task
from tests.support.harness import ADA, Harness
from tests.support.scripted_peer import ScriptedResponse
from tests.support.scripted_tasks import Turn
from tests.support.waiting import wait_until

pytestmark = pytest.mark.anyio


def state_of(task: JsonObject) -> str:
    return str(cast("JsonObject", task["status"])["state"]).removeprefix("TASK_STATE_")


@pytest.mark.requirement("AP-8", "I6")
async def test_stream_that_closes_without_an_end_completes_no_task(harness: Harness) -> None:
    accepted = await harness.send("close", wait="stream")
    watching = asyncio.create_task(harness.watch(accepted))
    await wait_until(
        lambda: harness.peer.count("SubscribeToTask"), 15, "the agent is followed again"
    )
    assert (await harness.record(accepted)).status is Status.RUNNING
    assert not watching.done()
    (remote,) = harness.peer.tasks.values()
    remote.status("COMPLETED", "now it is done")
    frames = await watching
    assert "now it is done" in str(frames[-1])
    assert len(harness.peer.messages) == 1


@pytest.mark.requirement("I6")
async def test_dropped_stream_resumes_with_every_chunk_once(harness: Harness) -> None:
    async def drop_half_way(turn: Turn) -> None:
        await turn.status("WORKING")
        for number in range(1, 7):
            await turn.artifact(f"chunk-{number} ", append=number > 1, last=number == 6)
            if number == 3:
                await turn.drop()
        await turn.status("COMPLETED")

    harness.peer.next(drop_half_way)
    accepted = await harness.send("go", wait="stream")
    frames = await harness.watch(accepted)
    assert join_chunks(frames) == "".join(f"chunk-{number} " for number in range(1, 7))
    (artifact,) = cast("list[JsonObject]", (await harness.read(accepted))["artifacts"])
    assert len(cast("list[JsonObject]", artifact["parts"])) == 6
    assert len(harness.peer.messages) == 1


def join_chunks(frames: list[JsonObject]) -> str:
    """The text of all artifact chunks."""
    chunks = [
        cast("JsonObject", cast("JsonObject", frame["artifactUpdate"])["artifact"])
        for frame in frames
        if "artifactUpdate" in frame
    ]
    return "".join(
        str(part["text"]) for chunk in chunks for part in cast("list[JsonObject]", chunk["parts"])
    )


@pytest.mark.requirement("A2A-6")
async def test_delivery_mechanism_of_a_run_follows_its_fallback(harness: Harness) -> None:
    accepted = await harness.send("drop", wait="stream")

    async def subscribed() -> bool:
        run = (await harness.record(accepted)).run
        return run is not None and run.delivery_mechanism == "subscription"

    await wait_until(subscribed, 15, "the run is followed by subscription")
    (remote,) = harness.peer.tasks.values()
    remote.status("COMPLETED")
    await harness.until(accepted, Status.COMPLETED)


@pytest.mark.parametrize("wait", ["unary", "stream"])
async def test_send_of_unknown_outcome_is_found_at_the_agent_and_not_repeated(
    harness: Harness, wait: str
) -> None:
    accepted = await harness.send("drop-first", wait="stream" if wait == "stream" else "unary")
    task = cast("JsonObject", (await harness.await_answer(accepted))["task"])
    assert state_of(task) == "COMPLETED"
    assert len(harness.peer.messages) == 1
    assert harness.peer.count("ListTasks") >= 1


async def test_send_that_cannot_be_found_is_reported_as_lost(harness: Harness) -> None:
    async def drop_connection(turn: Turn) -> None:
        await turn.drop()

    harness.peer.next(drop_connection)
    accepted = await harness.send("go")
    task = cast("JsonObject", (await harness.await_answer(accepted))["task"])
    assert state_of(task) == "FAILED"
    assert "it is unknown whether" in str(task["status"])
    record = await harness.record(accepted)
    assert (record.status, record.attempts[-1].status) == (Status.FAILED, Status.LOST)
    assert len(harness.peer.messages) == 1


@pytest.mark.requirement("ST-16", "CF-11", "TEV-15")
async def test_task_forgotten_by_its_agent_is_lost_and_fails_after_the_limit(
    harness: Harness,
) -> None:
    accepted = await harness.send("forget", wait="stream")
    watching = asyncio.create_task(harness.watch(accepted))
    await harness.until(accepted, Status.LOST)
    assert state_of(await harness.read(accepted)) == "WORKING"
    harness.clock.ahead_ms += 60_000
    record = await harness.until(accepted, Status.FAILED)
    assert record.attempts[-1].status is Status.LOST
    frames = await watching
    assert "TASK_STATE_FAILED" in str(frames[-1])


async def test_cancel_of_a_task_forgotten_by_its_agent_ends_it_at_once(harness: Harness) -> None:
    accepted = await harness.send("forget", wait="stream")
    watching = asyncio.create_task(harness.watch(accepted))
    await harness.until(accepted, Status.LOST)
    await harness.cancel(accepted)
    await harness.until(accepted, Status.CANCELLED)
    assert "TASK_STATE_CANCELED" in str((await watching)[-1])


@pytest.mark.requirement("I6")
async def test_lost_task_is_found_again_when_the_agent_is_reachable(harness: Harness) -> None:
    accepted = await harness.send("silent", wait="stream")
    await harness.until(accepted, Status.QUEUED)
    await harness.peer.stop()
    harness.clock.ahead_ms += 1_000
    await harness.until(accepted, Status.LOST)
    await harness.peer.start()
    await harness.until(accepted, Status.RUNNING)
    (remote,) = harness.peer.tasks.values()
    remote.status("COMPLETED")
    await harness.until(accepted, Status.COMPLETED)


@pytest.mark.requirement("CMD-9")
async def test_cancel_is_recorded_before_it_is_sent(harness: Harness) -> None:
    accepted = await harness.send("silent", wait="stream")
    await harness.until(accepted, Status.QUEUED)
    watching = asyncio.create_task(harness.watch(accepted))
    cancelling = await harness.cancel(accepted, "not needed")
    assert state_of(cancelling) in {"SUBMITTED", "WORKING", "CANCELED"}
    await harness.until(accepted, Status.CANCELLED)
    assert harness.peer.count("CancelTask") == 1
    assert "TASK_STATE_CANCELED" in str((await watching)[-1])
    types = await harness.types(accepted)
    assert types.index("task.cancel_requested") < types.index("task.cancelled")
    with pytest.raises(NotCancelable):
        await harness.cancel(accepted)
    assert f"cancel:{accepted.task_id}" not in await harness.due(accepted.task_id)


@pytest.mark.requirement("MK-11")
async def test_agent_that_completes_during_a_cancel_keeps_its_artifacts_and_native_status(
    harness: Harness,
) -> None:
    async def nearly_done(turn: Turn) -> None:
        await turn.status("WORKING")
        await turn.artifact("the result")
        await asyncio.Event().wait()

    harness.peer.on_cancel = "completed"
    harness.peer.next(nearly_done)
    accepted = await harness.send("go", wait="stream")

    async def has_result() -> bool:
        return bool((await harness.record(accepted)).artifacts)

    await wait_until(has_result, 15, "the artifact is stored")
    await harness.cancel(accepted)
    record = await harness.until(accepted, Status.CANCELLED)
    assert record.attempts[-1].native_status == "TASK_STATE_COMPLETED"
    assert len(record.artifacts) == 1
    task = await harness.read(accepted)
    assert state_of(task) == "CANCELED"
    assert "the result" in str(task["artifacts"])


async def test_cancel_during_an_open_stream_repeats_no_chunk(harness: Harness) -> None:
    accepted = await harness.send("silent", wait="stream")
    await harness.until(accepted, Status.QUEUED)
    (remote,) = harness.peer.tasks.values()
    harness.peer.on_cancel = "ignored"
    watching = asyncio.create_task(harness.watch(accepted))
    remote.artifact([{"text": "one "}], last=False)

    async def is_open() -> bool:
        return "one " in str(await harness.read(accepted))

    await wait_until(is_open, 15, "the artifact is open")
    late: list[JsonObject] = []
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(remote, "tell", late.append)
        remote.artifact([{"text": "two "}], append=True, last=False)

    async def arrive(batch: Batch) -> None:
        """The frame arrives while the same chunk is stored from a response of the agent."""
        if late and any(b"two " in event.body for event in batch.events):
            remote.tell(late.pop())
            await asyncio.sleep(0.05)  # gives the fault time to occur

    harness.log.before_append = arrive
    await harness.cancel(accepted)
    await wait_until(lambda: not late, 15, "the frame has arrived")
    remote.status("CANCELED")
    await harness.until(accepted, Status.CANCELLED)
    assert join_chunks(await watching) == "one two "


@pytest.mark.requirement("I9", "CMD-9")
async def test_cancel_that_does_not_reach_the_agent_stays_due(harness: Harness) -> None:
    accepted = await harness.send("silent", wait="stream")
    await harness.until(accepted, Status.QUEUED)
    await harness.peer.stop()
    await harness.cancel(accepted)
    assert (await harness.record(accepted)).status is Status.CANCELLING
    assert f"cancel:{accepted.task_id}" in await harness.due(accepted.task_id)
    await harness.peer.start()
    await harness.run_due("cancel", accepted.task_id, after_ms=0)
    await harness.until(accepted, Status.CANCELLED)


@pytest.mark.parametrize(
    ("word", "status", "native"),
    [
        ("fail", Status.FAILED, "FAILED"),
        ("reject", Status.FAILED, "REJECTED"),
        ("canceled", Status.CANCELLED, "CANCELED"),
    ],
)
async def test_end_reported_by_the_agent_is_recorded_with_native_status_and_id(
    harness: Harness, word: str, status: Status, native: str
) -> None:
    harness.peer.use_task_ids("remote-ended")
    accepted, answer = await harness.talk(f"{word} because")
    assert state_of(cast("JsonObject", answer["task"])) == native
    record = await harness.record(accepted)
    attempt = record.attempts[-1]
    assert (record.status, attempt.native_status) == (status, f"TASK_STATE_{native}")
    assert attempt.remote_task_id == "remote-ended"
    assert record.rejected is (native == "REJECTED")


@pytest.mark.requirement("I9")
async def test_total_limit_ends_the_task_by_its_due_row_and_cancels_at_the_agent(
    harness: Harness,
) -> None:
    harness.policy = RetryPolicy(total_timeout_ms=5_000)
    accepted = await harness.send("silent", wait="stream")
    await harness.until(accepted, Status.QUEUED)
    watching = asyncio.create_task(harness.watch(accepted))
    await harness.run_due("timeout", accepted.task_id, after_ms=5_000)
    record = await harness.until(accepted, Status.TIMED_OUT)
    assert record.attempts[-1].status is Status.TIMED_OUT
    assert "longer than 5 s" in str((await watching)[-1])
    await wait_until(lambda: harness.peer.count("CancelTask") == 1, 15, "the agent has the cancel")
    assert f"timeout:{accepted.task_id}" not in await harness.due(accepted.task_id)


@pytest.mark.requirement("I9")
async def test_total_limit_of_a_hidden_turn_is_a_failed_task_for_its_caller(
    harness: Harness,
) -> None:
    harness.policy = RetryPolicy(total_timeout_ms=5_000)
    accepted = await harness.send("mute")
    response = asyncio.create_task(harness.await_answer(accepted))
    await wait_until(lambda: harness.peer.messages, 15, "the peer has the message")
    await harness.run_due("timeout", accepted.task_id, after_ms=5_000)
    task = cast("JsonObject", (await response)["task"])
    assert state_of(task) == "FAILED"
    assert "longer than 5 s" in str(task["status"])
    assert await harness.read(accepted) == task
    wire = await harness.service.read(ADA, GetRecord(accepted.facade))
    assert (wire["status"], wire["shown"]) == ("timed_out", True)


async def test_task_of_an_unreachable_agent_is_lost_only_after_its_limit(harness: Harness) -> None:
    harness.timeouts = replace(harness.timeouts, liveness_s=120.0)
    await harness.restart()
    accepted = await harness.send("silent", wait="stream")
    await harness.until(accepted, Status.QUEUED)
    await harness.peer.stop()
    driver = harness.parts.dispatch.find(accepted.task_id)
    assert driver is not None
    for _ in range(3):
        await poll_task(driver, "scripted-task-1")
    assert (await harness.record(accepted)).status is Status.QUEUED
    harness.clock.ahead_ms += 121_000
    await poll_task(driver, "scripted-task-1")
    assert (await harness.record(accepted)).status is Status.LOST


async def test_task_of_an_agent_whose_task_has_no_state_any_more_is_lost_after_its_limit(
    harness: Harness,
) -> None:
    harness.timeouts = replace(harness.timeouts, liveness_s=120.0)
    await harness.restart()
    accepted = await harness.send("silent", wait="stream")
    await harness.until(accepted, Status.QUEUED)
    driver = harness.parts.dispatch.find(accepted.task_id)
    assert driver is not None
    (remote,) = harness.peer.tasks.values()
    remote.record["status"] = {}
    seen = len(await harness.events(accepted))
    for _ in range(3):
        await poll_task(driver, remote.id)
    assert (await harness.record(accepted)).status is Status.QUEUED
    assert len(await harness.events(accepted)) == seen, "polls that bring nothing leave nothing"
    harness.clock.ahead_ms += 121_000
    await poll_task(driver, remote.id)
    assert (await harness.record(accepted)).status is Status.LOST


@pytest.mark.requirement("I6")
async def test_caller_that_disconnects_ends_nothing(harness: Harness) -> None:
    harness.peer.hold()
    accepted = await harness.send("chunks 3", wait="stream")
    harness.peer.release(3)
    async with harness.service.follow(ADA, accepted) as followed:
        await anext(followed.frames)
    response = asyncio.create_task(harness.await_answer(accepted))
    await asyncio.sleep(0)
    response.cancel()
    await asyncio.gather(response, return_exceptions=True)
    harness.peer.release_all()
    await harness.until(accepted, Status.COMPLETED)
    assert "chunk-3" in str(await harness.read(accepted))
    assert len(harness.peer.messages) == 1


async def test_waiting_caller_gets_the_cancelled_task(harness: Harness) -> None:
    accepted = await harness.send("silent", wait="stream")
    await harness.until(accepted, Status.QUEUED)
    response = asyncio.create_task(harness.await_answer(accepted))
    await harness.cancel(accepted)
    assert state_of(cast("JsonObject", (await response)["task"])) == "CANCELED"


async def test_cancel_of_a_waiting_task_closes_its_approval(harness: Harness) -> None:
    accepted, _ = await harness.talk("ask which")
    view = await harness.question(accepted)
    await harness.cancel(accepted)
    await harness.until(accepted, Status.CANCELLED)
    closed = await harness.service.read(ADA, GetAction(str(view["actionId"])))
    assert closed["state"] == "cancelled"
    assert await harness.store.log.read_open(accepted.session_id) == []


async def test_follow_up_that_the_agent_refuses_does_not_change_the_task(harness: Harness) -> None:
    accepted = await harness.send("silent", wait="stream")
    await harness.until(accepted, Status.QUEUED)
    harness.peer.answer_sends(ScriptedResponse(422))
    await harness.send("more", task=accepted.facade)

    async def is_recorded() -> bool:
        return "turn.failed" in await harness.types(accepted)

    await wait_until(is_recorded, 15, "the refusal is recorded")
    record = await harness.record(accepted)
    assert record.status is Status.QUEUED
    assert record.attempts[-1].pending_message_id is None
    assert record.open_turns == (accepted.turn_id,)
    (remote,) = harness.peer.tasks.values()
    remote.status("COMPLETED")
    await harness.until(accepted, Status.COMPLETED)
