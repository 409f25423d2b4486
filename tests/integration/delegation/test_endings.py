"""How a task ends, and what does not end it: closed streams, lost connections, forgetful agents, limits, cancels."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import cast

import pytest

from passerelle.core.batch import Batch
from passerelle.core.commands import GetAction, GetRecord
from passerelle.core.errors import NotCancelable, PeerUnavailable
from passerelle.core.facts import RetryPolicy
from passerelle.core.task.status import Status
from passerelle.core.wire.json import JsonObject
from passerelle.delegation.runs.peer_calls import poll_task
from tests.support.house import ADA, House
from tests.support.scripted_peer import HttpAnswer
from tests.support.scripted_tasks import Turn
from tests.support.waiting import wait_until

pytestmark = pytest.mark.anyio


def state_of(task: JsonObject) -> str:
    return str(cast("JsonObject", task["status"])["state"]).removeprefix("TASK_STATE_")


@pytest.mark.requirement("AP-8", "I6")
async def test_stream_that_closes_without_an_end_completes_no_task(house: House) -> None:
    accepted = await house.send("close", wait="stream")
    watching = asyncio.create_task(house.watch(accepted))
    await wait_until(lambda: house.peer.count("SubscribeToTask"), 15, "the agent is followed again")
    assert (await house.record(accepted)).status is Status.RUNNING
    assert not watching.done()
    (remote,) = house.peer.tasks.values()
    remote.status("COMPLETED", "now it is done")
    frames = await watching
    assert "now it is done" in str(frames[-1])
    assert len(house.peer.messages) == 1


@pytest.mark.requirement("I6")
async def test_dropped_stream_resumes_with_every_chunk_once(house: House) -> None:
    async def drop_half_way(turn: Turn) -> None:
        await turn.status("WORKING")
        for number in range(1, 7):
            await turn.artifact(f"chunk-{number} ", append=number > 1, last=number == 6)
            if number == 3:
                await turn.drop()
        await turn.status("COMPLETED")

    house.peer.next(drop_half_way)
    accepted = await house.send("go", wait="stream")
    frames = await house.watch(accepted)
    assert join_chunks(frames) == "".join(f"chunk-{number} " for number in range(1, 7))
    (artifact,) = cast("list[JsonObject]", (await house.read(accepted))["artifacts"])
    assert len(cast("list[JsonObject]", artifact["parts"])) == 6
    assert len(house.peer.messages) == 1


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
async def test_delivery_mechanism_of_a_run_follows_its_fallback(house: House) -> None:
    accepted = await house.send("drop", wait="stream")

    async def subscribed() -> bool:
        run = (await house.record(accepted)).run
        return run is not None and run.delivery_mechanism == "subscription"

    await wait_until(subscribed, 15, "the run is followed by subscription")
    (remote,) = house.peer.tasks.values()
    remote.status("COMPLETED")
    await house.until(accepted, Status.COMPLETED)


@pytest.mark.parametrize("wait", ["unary", "stream"])
async def test_send_of_unknown_outcome_is_found_at_the_agent_and_not_repeated(
    house: House, wait: str
) -> None:
    accepted = await house.send("drop-first", wait="stream" if wait == "stream" else "unary")
    task = cast("JsonObject", (await house.hear(accepted))["task"])
    assert state_of(task) == "COMPLETED"
    assert len(house.peer.messages) == 1
    assert house.peer.count("ListTasks") >= 1


async def test_send_that_cannot_be_found_is_reported_as_lost(house: House) -> None:
    async def drop_connection(turn: Turn) -> None:
        await turn.drop()

    house.peer.next(drop_connection)
    accepted = await house.send("go")
    task = cast("JsonObject", (await house.hear(accepted))["task"])
    assert state_of(task) == "FAILED"
    assert "it is unknown whether" in str(task["status"])
    record = await house.record(accepted)
    assert (record.status, record.attempts[-1].status) == (Status.FAILED, Status.LOST)
    assert len(house.peer.messages) == 1


@pytest.mark.requirement("ST-16", "CF-11", "TEV-15")
async def test_task_forgotten_by_its_agent_is_lost_and_fails_after_the_limit(house: House) -> None:
    accepted = await house.send("forget", wait="stream")
    watching = asyncio.create_task(house.watch(accepted))
    await house.until(accepted, Status.LOST)
    assert state_of(await house.read(accepted)) == "WORKING"
    house.clock.ahead_ms += 60_000
    record = await house.until(accepted, Status.FAILED)
    assert record.attempts[-1].status is Status.LOST
    frames = await watching
    assert "TASK_STATE_FAILED" in str(frames[-1])


async def test_cancel_of_a_task_forgotten_by_its_agent_ends_it_at_once(house: House) -> None:
    accepted = await house.send("forget", wait="stream")
    watching = asyncio.create_task(house.watch(accepted))
    await house.until(accepted, Status.LOST)
    await house.cancel(accepted)
    await house.until(accepted, Status.CANCELLED)
    assert "TASK_STATE_CANCELED" in str((await watching)[-1])


@pytest.mark.requirement("I6")
async def test_lost_task_is_found_again_when_the_agent_is_reachable(house: House) -> None:
    accepted = await house.send("silent", wait="stream")
    await house.until(accepted, Status.QUEUED)
    await house.peer.stop()
    house.clock.ahead_ms += 1_000
    await house.until(accepted, Status.LOST)
    await house.peer.start()
    await house.until(accepted, Status.RUNNING)
    (remote,) = house.peer.tasks.values()
    remote.status("COMPLETED")
    await house.until(accepted, Status.COMPLETED)


@pytest.mark.requirement("CMD-9")
async def test_cancel_is_recorded_before_it_is_sent(house: House) -> None:
    accepted = await house.send("silent", wait="stream")
    await house.until(accepted, Status.QUEUED)
    watching = asyncio.create_task(house.watch(accepted))
    cancelling = await house.cancel(accepted, "not needed")
    assert state_of(cancelling) in {"SUBMITTED", "WORKING", "CANCELED"}
    await house.until(accepted, Status.CANCELLED)
    assert house.peer.count("CancelTask") == 1
    assert "TASK_STATE_CANCELED" in str((await watching)[-1])
    types = await house.types(accepted)
    assert types.index("task.cancel_requested") < types.index("task.cancelled")
    with pytest.raises(NotCancelable):
        await house.cancel(accepted)
    assert f"cancel:{accepted.task_id}" not in await house.due(accepted.task_id)


@pytest.mark.requirement("MK-11")
async def test_agent_that_completes_during_a_cancel_keeps_its_artifacts_and_native_status(
    house: House,
) -> None:
    async def nearly_done(turn: Turn) -> None:
        await turn.status("WORKING")
        await turn.artifact("the result")
        await asyncio.Event().wait()

    house.peer.on_cancel = "completed"
    house.peer.next(nearly_done)
    accepted = await house.send("go", wait="stream")

    async def has_result() -> bool:
        return bool((await house.record(accepted)).artifacts)

    await wait_until(has_result, 15, "the artifact is stored")
    await house.cancel(accepted)
    record = await house.until(accepted, Status.CANCELLED)
    assert record.attempts[-1].native_status == "TASK_STATE_COMPLETED"
    assert len(record.artifacts) == 1
    task = await house.read(accepted)
    assert state_of(task) == "CANCELED"
    assert "the result" in str(task["artifacts"])


async def test_cancel_during_an_open_stream_repeats_no_chunk(house: House) -> None:
    accepted = await house.send("silent", wait="stream")
    await house.until(accepted, Status.QUEUED)
    (remote,) = house.peer.tasks.values()
    house.peer.on_cancel = "ignored"
    watching = asyncio.create_task(house.watch(accepted))
    remote.artifact([{"text": "one "}], last=False)

    async def is_open() -> bool:
        return "one " in str(await house.read(accepted))

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

    house.log.before_append = arrive
    await house.cancel(accepted)
    await wait_until(lambda: not late, 15, "the frame has arrived")
    remote.status("CANCELED")
    await house.until(accepted, Status.CANCELLED)
    assert join_chunks(await watching) == "one two "


@pytest.mark.requirement("I9", "CMD-9")
async def test_cancel_that_does_not_reach_the_agent_stays_due(house: House) -> None:
    accepted = await house.send("silent", wait="stream")
    await house.until(accepted, Status.QUEUED)
    await house.peer.stop()
    await house.cancel(accepted)
    assert (await house.record(accepted)).status is Status.CANCELLING
    assert f"cancel:{accepted.task_id}" in await house.due(accepted.task_id)
    await house.peer.start()
    await house.come_due("cancel", accepted.task_id, after_ms=0)
    await house.until(accepted, Status.CANCELLED)


@pytest.mark.parametrize(
    ("word", "status", "native"),
    [
        ("fail", Status.FAILED, "FAILED"),
        ("reject", Status.FAILED, "REJECTED"),
        ("canceled", Status.CANCELLED, "CANCELED"),
    ],
)
async def test_end_reported_by_the_agent_is_recorded_with_native_status_and_id(
    house: House, word: str, status: Status, native: str
) -> None:
    house.peer.use_task_ids("remote-ended")
    accepted, answer = await house.talk(f"{word} because")
    assert state_of(cast("JsonObject", answer["task"])) == native
    record = await house.record(accepted)
    attempt = record.attempts[-1]
    assert (record.status, attempt.native_status) == (status, f"TASK_STATE_{native}")
    assert attempt.remote_task_id == "remote-ended"
    assert record.rejected is (native == "REJECTED")


@pytest.mark.requirement("I9")
async def test_total_limit_ends_the_task_by_its_due_row_and_cancels_at_the_agent(
    house: House,
) -> None:
    house.policy = RetryPolicy(total_timeout_ms=5_000)
    accepted = await house.send("silent", wait="stream")
    await house.until(accepted, Status.QUEUED)
    watching = asyncio.create_task(house.watch(accepted))
    await house.come_due("timeout", accepted.task_id, after_ms=5_000)
    record = await house.until(accepted, Status.TIMED_OUT)
    assert record.attempts[-1].status is Status.TIMED_OUT
    assert "longer than 5 s" in str((await watching)[-1])
    await wait_until(lambda: house.peer.count("CancelTask") == 1, 15, "the agent has the cancel")
    assert f"timeout:{accepted.task_id}" not in await house.due(accepted.task_id)


@pytest.mark.requirement("I9")
async def test_total_limit_of_a_hidden_turn_is_an_error_for_its_caller(house: House) -> None:
    house.policy = RetryPolicy(total_timeout_ms=5_000)
    accepted = await house.send("mute")
    response = asyncio.create_task(house.hear(accepted))
    await wait_until(lambda: house.peer.messages, 15, "the peer has the message")
    await house.come_due("timeout", accepted.task_id, after_ms=5_000)
    with pytest.raises(PeerUnavailable, match="longer than 5 s"):
        await response
    wire = await house.service.read(ADA, GetRecord(accepted.facade))
    assert (wire["status"], wire.get("shown", False)) == ("timed_out", False)


async def test_task_of_an_unreachable_agent_is_lost_only_after_its_limit(house: House) -> None:
    house.timeouts = replace(house.timeouts, liveness_s=120.0)
    await house.restart()
    accepted = await house.send("silent", wait="stream")
    await house.until(accepted, Status.QUEUED)
    await house.peer.stop()
    driver = house.parts.dispatch.find(accepted.task_id)
    assert driver is not None
    for _ in range(3):
        await poll_task(driver, "scripted-task-1")
    assert (await house.record(accepted)).status is Status.QUEUED
    house.clock.ahead_ms += 121_000
    await poll_task(driver, "scripted-task-1")
    assert (await house.record(accepted)).status is Status.LOST


@pytest.mark.requirement("I6")
async def test_caller_that_disconnects_ends_nothing(house: House) -> None:
    house.peer.hold()
    accepted = await house.send("chunks 3", wait="stream")
    house.peer.release(3)
    async with house.service.follow(ADA, accepted) as followed:
        await anext(followed.frames)
    response = asyncio.create_task(house.hear(accepted))
    await asyncio.sleep(0)
    response.cancel()
    await asyncio.gather(response, return_exceptions=True)
    house.peer.release_all()
    await house.until(accepted, Status.COMPLETED)
    assert "chunk-3" in str(await house.read(accepted))
    assert len(house.peer.messages) == 1


async def test_waiting_caller_gets_the_cancelled_task(house: House) -> None:
    accepted = await house.send("silent", wait="stream")
    await house.until(accepted, Status.QUEUED)
    response = asyncio.create_task(house.hear(accepted))
    await house.cancel(accepted)
    assert state_of(cast("JsonObject", (await response)["task"])) == "CANCELED"


async def test_cancel_of_a_waiting_task_closes_its_approval(house: House) -> None:
    accepted, _ = await house.talk("ask which")
    view = await house.question(accepted)
    await house.cancel(accepted)
    await house.until(accepted, Status.CANCELLED)
    closed = await house.service.read(ADA, GetAction(str(view["actionId"])))
    assert closed["state"] == "cancelled"
    assert await house.store.log.read_open(accepted.session_id) == []


async def test_follow_up_that_the_agent_refuses_does_not_change_the_task(house: House) -> None:
    accepted = await house.send("silent", wait="stream")
    await house.until(accepted, Status.QUEUED)
    house.peer.answer_sends(HttpAnswer(422))
    await house.send("more", task=accepted.facade)

    async def is_recorded() -> bool:
        return "turn.failed" in await house.types(accepted)

    await wait_until(is_recorded, 15, "the refusal is recorded")
    record = await house.record(accepted)
    assert record.status is Status.QUEUED
    assert record.attempts[-1].pending_message_id is None
    assert record.open_turns == (accepted.turn_id,)
    (remote,) = house.peer.tasks.values()
    remote.status("COMPLETED")
    await house.until(accepted, Status.COMPLETED)
