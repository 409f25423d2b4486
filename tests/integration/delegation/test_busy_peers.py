"""Agents that take no more work, or say too much: what the caller learns, and what the record says."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import cast

import pytest

from passerelle.core.batch import Incarnation
from passerelle.core.commands import SubmitTurn, TurnAccepted, WaitMode
from passerelle.core.decision import Decision
from passerelle.core.errors import PeerBusy, PeerUnavailable
from passerelle.core.facts import RetryPolicy
from passerelle.core.ids import Shard
from passerelle.core.payloads.limit import LimitSubject, RateLimitHit
from passerelle.core.payloads.task import TaskCancelRequested
from passerelle.core.task.commands import RequestCancel
from passerelle.core.task.machine import decide
from passerelle.core.task.record import TaskRecord
from passerelle.core.task.status import Status
from passerelle.core.wire.json import JsonObject
from passerelle.runtime.records.writes import AppendOptions
from tests.integration.delegation.test_endings import state_of
from tests.support.harness import ADA, Harness, task_of
from tests.support.scripted_peer import HttpAnswer
from tests.support.scripted_tasks import Turn
from tests.support.waiting import wait_until

pytestmark = pytest.mark.anyio


async def until_held(harness: Harness, accepted: TurnAccepted) -> TaskRecord:
    """The record once the peer has not taken the message."""
    return await harness.until(accepted, Status.WAITING_RESOURCE)


@pytest.mark.requirement("I9", "ST-8", "CF-7")
@pytest.mark.parametrize(("status", "is_limit"), [(429, True), (503, False)])
@pytest.mark.parametrize("wait", ["unary", "stream"])
async def test_message_for_a_busy_agent_waits_for_the_time_that_it_names(
    harness: Harness, wait: WaitMode, status: int, *, is_limit: bool
) -> None:
    harness.peer.answer_next(HttpAnswer(status, headers={"Retry-After": "7"}))
    accepted = await harness.send("hello", wait=wait)
    hearing = asyncio.create_task(harness.await_answer(accepted))
    record = await until_held(harness, accepted)
    attempt = record.attempts[-1]
    assert record.status_reason is not None
    assert "takes no more work" in record.status_reason
    assert await harness.resources(accepted) == ["external"]
    assert (attempt.pending_message_id, len(record.attempts)) == (None, 1)
    member = f"send:{accepted.task_id}"
    wait_ms = int((await harness.due(accepted.task_id))[member]) - harness.clock.now_ms()
    assert 6_000 < wait_ms <= 7_000
    await harness.run_due("send", accepted.task_id, after_ms=6_000)
    assert harness.peer.texts == ["hello"], "it is not tried before its time"
    await harness.run_due("send", accepted.task_id, after_ms=1_000)
    await harness.until(accepted, Status.COMPLETED)
    assert "task" in await hearing
    assert harness.peer.texts == ["hello", "hello"]
    assert len({str(message["messageId"]) for message in harness.peer.messages}) == 1
    assert member not in await harness.due(accepted.task_id)
    events = await harness.types(accepted)
    assert (
        events.index("task.waiting") < events.index("task.resumed") < events.index("task.completed")
    )
    assert events[events.index("task.resumed") + 1] == "model.requested"
    facts = [event.fact.payload for event in await harness.events(accepted)]
    hits = [payload for payload in facts if isinstance(payload, RateLimitHit)]
    wanted = RateLimitHit(LimitSubject("peer", "echo"), "peer", 7_000, "429")
    assert hits == ([wanted] if is_limit else [])


def read_wait(task: JsonObject) -> str:
    """What a Task that waits for a busy agent says."""
    assert state_of(task) == "WORKING"
    assert cast("JsonObject", task["metadata"])["urn:passerelle:status"] == {
        "reason": "agent_busy",
        "peer": "echo",
    }
    said = str(cast("JsonObject", task["status"])["message"])
    assert "takes no more work for now" in said
    assert "it is retried at" in said
    assert "can be cancelled" in said
    return said


@pytest.mark.parametrize("status", [429, 503])
async def test_unary_caller_gets_the_task_that_waits(harness: Harness, status: int) -> None:
    """Also on another instance, and after a restart, and whoever asks under the same key."""
    harness.peer.answer_next(HttpAnswer(status, headers={"Retry-After": "7"}))
    accepted = await harness.send("hello")
    told = cast("JsonObject", (await harness.await_answer(accepted))["task"])
    assert f"HTTP {status}" in read_wait(told)
    assert await harness.read(accepted) == told
    await harness.restart()
    assert cast("JsonObject", (await harness.await_answer(accepted))["task"]) == told
    await harness.adopt(accepted)
    harness.clock.ahead_ms += 7_000
    await harness.run_due("send", accepted.task_id, after_ms=0)
    await harness.until(accepted, Status.COMPLETED)
    task = await harness.read(accepted)
    assert state_of(task) == "COMPLETED"
    assert task["id"] == told["id"]
    assert harness.peer.texts == ["hello", "hello"]


async def test_streaming_caller_sees_each_wait_as_a_status(harness: Harness) -> None:
    busy = HttpAnswer(429, headers={"Retry-After": "7"})
    harness.peer.answer_next(busy, busy)
    accepted = await harness.send("hello", wait="stream")
    watching = asyncio.create_task(harness.watch(accepted))
    for times in (1, 2):
        await wait_until(
            lambda: harness.peer.count("SendStreamingMessage") == times,  # noqa: B023
            15,
            "it was tried",
        )
        await until_held(harness, accepted)
        harness.clock.ahead_ms += 7_000
        await harness.run_due("send", accepted.task_id, after_ms=0)
    frames = await watching
    first, second = frames[:2]
    read_wait(cast("JsonObject", first["task"]))
    read_wait(cast("JsonObject", second["statusUpdate"]))
    assert state_of(await harness.read(accepted)) == "COMPLETED"


async def test_bare_message_of_an_agent_that_was_busy_completes_the_task_that_waited(
    harness: Harness,
) -> None:
    harness.peer.answer_next(HttpAnswer(429, headers={"Retry-After": "7"}))
    accepted = await harness.send("message hello")
    read_wait(cast("JsonObject", (await harness.await_answer(accepted))["task"]))
    await until_held(harness, accepted)
    harness.clock.ahead_ms += 7_000
    await harness.run_due("send", accepted.task_id, after_ms=0)
    await harness.until(accepted, Status.COMPLETED)
    assert "hello" in str((await harness.read(accepted))["artifacts"])


async def test_short_wait_is_no_news_to_whoever_waits_for_the_answer(harness: Harness) -> None:
    harness.peer.answer_next(HttpAnswer(503, headers={"Retry-After": "2"}))
    accepted = await harness.send("message hello")
    hearing = asyncio.create_task(harness.await_answer(accepted))
    await until_held(harness, accepted)
    await harness.run_due("send", accepted.task_id, after_ms=2_000)
    assert "message" in await hearing


@pytest.mark.parametrize("wait", ["unary", "stream"])
@pytest.mark.parametrize(("status", "error"), [(429, PeerBusy), (503, PeerUnavailable)])
async def test_operator_may_have_busy_agents_refuse(
    harness: Harness, wait: WaitMode, status: int, error: type[PeerUnavailable]
) -> None:
    harness.timeouts = replace(harness.timeouts, refuses=True)
    await harness.restart()
    harness.peer.answer_next(HttpAnswer(status, headers={"Retry-After": "7"}))
    accepted = await harness.send("hello", wait=wait)
    with pytest.raises(PeerUnavailable, match="takes no more work") as caught:
        await harness.await_answer(accepted)
    assert (type(caught.value), caught.value.retry_after_s) == (error, 7)
    await harness.until(accepted, Status.FAILED)
    assert harness.peer.texts == ["hello"]
    assert f"send:{accepted.task_id}" not in await harness.due(accepted.task_id)


async def test_message_that_was_never_taken_is_given_up_in_time(harness: Harness) -> None:
    harness.timeouts = replace(harness.timeouts, busy_s=10.0)
    await harness.restart()
    busy = HttpAnswer(429, headers={"Retry-After": "7"})
    harness.peer.answer_next(busy, busy)
    accepted = await harness.send("hello")
    read_wait(cast("JsonObject", (await harness.await_answer(accepted))["task"]))
    await until_held(harness, accepted)
    harness.clock.ahead_ms += 7_000
    await harness.run_due("send", accepted.task_id, after_ms=0)
    await harness.until(accepted, Status.FAILED)
    task = await harness.read(accepted)
    assert state_of(task) == "FAILED"
    assert "takes no more work" in str(task["status"])
    assert harness.peer.texts == ["hello", "hello"]


@pytest.mark.requirement("I9")
async def test_message_that_is_held_back_is_sent_by_the_next_driver(harness: Harness) -> None:
    harness.peer.answer_next(HttpAnswer(429, headers={"Retry-After": "60"}))
    accepted = await harness.send("hello")
    await until_held(harness, accepted)
    await harness.restart()
    await harness.adopt(accepted)
    assert harness.peer.texts == ["hello"]
    harness.clock.ahead_ms += 60_000
    await harness.run_due("send", accepted.task_id, after_ms=0)
    await harness.until(accepted, Status.COMPLETED)
    assert harness.peer.texts == ["hello", "hello"]
    assert harness.peer.count("ListTasks") == 0, "it is known that the peer does not have it"


@pytest.mark.requirement("LT-10")
async def test_message_of_the_next_driver_says_all_that_the_first_one_said(
    harness: Harness,
) -> None:
    before, _ = await harness.talk("chunks 1")
    message = harness.message("go on")
    message["referenceTaskIds"] = [before.facade]
    params: JsonObject = {
        "configuration": {"acceptedOutputModes": ["text/plain"]},
        "metadata": {"tier": "gold"},
    }
    harness.peer.answer_next(HttpAnswer(429, headers={"Retry-After": "60"}))
    command = SubmitTurn(
        "echo", message, "a2a", "unary", context_id=before.context_id, params=params
    )
    accepted = await harness.service.execute(ADA, command, None)
    assert isinstance(accepted, TurnAccepted)
    harness.remember(accepted.session_id)
    await until_held(harness, accepted)
    await harness.restart()
    harness.clock.ahead_ms += 60_000
    await harness.adopt(accepted)
    await harness.until(accepted, Status.COMPLETED)
    _, first, second = [one.params for one in harness.peer.requests if one.method == "SendMessage"]
    assert second == first
    assert cast("JsonObject", second["message"])["referenceTaskIds"] == list(harness.peer.tasks)[:1]
    assert second["metadata"] == {"tier": "gold"}


async def test_agent_that_names_no_time_is_tried_again_in_ours(harness: Harness) -> None:
    harness.peer.answer_next(HttpAnswer(429), HttpAnswer(429))
    accepted = await harness.send("hello")
    for times in (1, 2):
        await wait_until(lambda: harness.peer.count("SendMessage") == times, 15, "it was tried")  # noqa: B023
        await until_held(harness, accepted)
        await harness.run_due("send", accepted.task_id, after_ms=times * 1_000)
    await harness.until(accepted, Status.COMPLETED)
    assert harness.peer.count("SendMessage") == 3


async def test_message_that_is_held_back_and_cancelled_never_leaves(harness: Harness) -> None:
    harness.peer.answer_next(HttpAnswer(503, headers={"Retry-After": "60"}))
    accepted = await harness.send("hello")
    await until_held(harness, accepted)
    await wish_to_stop(harness, accepted)
    await harness.until(accepted, Status.CANCELLED)
    assert harness.peer.count("SendMessage") == 1


@pytest.mark.parametrize("wait", ["unary", "stream"])
async def test_message_that_is_cancelled_when_its_lease_ends_before_its_first_byte_never_leaves(
    harness: Harness, wait: WaitMode
) -> None:
    dispatch, asked, leave = harness.parts.dispatch, list[str](), asyncio.Event()

    def lose_it_behind_the_first_look(shard: Shard) -> Incarnation | None:
        asked.append("asked")
        is_first = len(asked) % 2 == 1
        return dispatch.drives(shard) if leave.is_set() and is_first else None

    dispatch.find_sender = lose_it_behind_the_first_look
    accepted = await harness.send("hello", wait=wait)
    await wait_until(lambda: bool(asked), 15, "the driver waits for its lease")
    await wish_to_stop(harness, accepted)
    leave.set()
    await harness.until(accepted, Status.CANCELLED)
    assert harness.peer.texts == []


async def wish_to_stop(harness: Harness, accepted: TurnAccepted) -> None:
    """As a caller's CancelTask, also of a task that callers are not shown yet."""
    requested = TaskCancelRequested("ada", "user", "active_run")

    def wish(decision: Decision) -> AppendOptions:
        record = decision.state(task_of(accepted))
        assert isinstance(record, TaskRecord)
        decision.add(decide(record, RequestCancel(requested)))
        return AppendOptions()

    await harness.parts.writes.decide(accepted.session_id, [task_of(accepted)], wish)
    await harness.parts.dispatch.cancel(accepted.task_id)


async def test_wait_that_would_outlast_the_run_is_an_error_with_its_time(harness: Harness) -> None:
    harness.policy = RetryPolicy(total_timeout_ms=5_000)
    harness.peer.answer_next(HttpAnswer(503, headers={"Retry-After": "7"}))
    accepted = await harness.send("hello")
    with pytest.raises(PeerUnavailable) as caught:
        await harness.await_answer(accepted)
    assert caught.value.retry_after_s == 7
    await harness.until(accepted, Status.FAILED)


async def test_agent_that_is_busy_with_questions_is_asked_when_it_says(harness: Harness) -> None:
    async def story(turn: Turn) -> None:
        await turn.status("WORKING")
        harness.peer.subscribes = False
        busy = HttpAnswer(429, headers={"Retry-After": "1"})
        harness.peer.answer_next(busy, busy)  # the subscription, and the question after it
        await turn.drop()

    harness.peer.next(story)
    accepted = await harness.send("hello", wait="stream")
    await wait_until(lambda: harness.peer.count("GetTask"), 15, "it was asked")
    before = harness.clock.now_ms()
    (remote,) = harness.peer.tasks.values()
    remote.status("COMPLETED")
    await harness.until(accepted, Status.COMPLETED)
    assert harness.clock.now_ms() - before > 500
    assert harness.peer.count("GetTask") == 2


async def test_agent_whose_task_is_longer_than_may_be_read_is_told_to_stop(
    harness: Harness,
) -> None:
    endless = HttpAnswer(200, b"[" + b" " * (24 * 1024 * 1024) + b"]")

    async def story(turn: Turn) -> None:
        await turn.status("WORKING")
        harness.peer.answer_next(endless, endless)
        await turn.drop()

    harness.peer.next(story)
    accepted = await harness.send("hello", wait="stream")
    record = await harness.until(accepted, Status.FAILED)
    assert record.last_error is not None
    assert record.last_error.code == "invalid_agent_response"
    await wait_until(lambda: harness.peer.count("CancelTask"), 15, "the agent is told to stop")


@pytest.mark.requirement("ST-8", "CF-7")
async def test_message_for_an_agent_that_is_left_alone_for_a_while_says_what_is_missing(
    harness: Harness,
) -> None:
    await harness.talk("hello")
    await harness.peer.stop()
    for _ in range(5):
        with pytest.raises(PeerUnavailable):
            await harness.talk("in vain")
    accepted = await harness.send("later", wait="none")
    await until_held(harness, accepted)
    assert await harness.resources(accepted) == ["network"]
    assert state_of(await harness.cancel(accepted)) == "CANCELED"
