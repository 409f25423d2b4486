"""Busy agents and agents with too long responses: what the caller gets, and what is recorded."""

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
from tests.support.scripted_peer import ScriptedResponse
from tests.support.scripted_tasks import Turn
from tests.support.waiting import wait_until

pytestmark = pytest.mark.anyio


async def until_held(harness: Harness, accepted: TurnAccepted) -> TaskRecord:
    """The record after the agent has refused the message as busy."""
    return await harness.until(accepted, Status.WAITING_RESOURCE)


@pytest.mark.requirement("I9", "ST-8", "CF-7")
@pytest.mark.parametrize(("status", "is_limit"), [(429, True), (503, False)])
@pytest.mark.parametrize("wait", ["unary", "stream"])
async def test_message_for_a_busy_agent_waits_for_its_retry_after(
    harness: Harness, wait: WaitMode, status: int, *, is_limit: bool
) -> None:
    harness.peer.answer_next(ScriptedResponse(status, headers={"Retry-After": "7"}))
    accepted = await harness.send("hello", wait=wait)
    response = asyncio.create_task(harness.await_answer(accepted))
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
    assert harness.peer.texts == ["hello"], "it is not retried too early"
    await harness.run_due("send", accepted.task_id, after_ms=1_000)
    await harness.until(accepted, Status.COMPLETED)
    assert "task" in await response
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
    """Checks the status of a Task that waits for a busy agent, and returns its message."""
    assert state_of(task) == "WORKING"
    assert cast("JsonObject", task["metadata"])["urn:passerelle:status"] == {
        "reason": "agent_busy",
        "peer": "echo",
    }
    text = str(cast("JsonObject", task["status"])["message"])
    assert "takes no more work for now" in text
    assert "it is retried at" in text
    assert "can be cancelled" in text
    return text


@pytest.mark.parametrize("status", [429, 503])
async def test_unary_caller_gets_the_waiting_task(harness: Harness, status: int) -> None:
    """Also after a restart, and for a caller that repeats the call with the same key."""
    harness.peer.answer_next(ScriptedResponse(status, headers={"Retry-After": "7"}))
    accepted = await harness.send("hello")
    waiting = cast("JsonObject", (await harness.await_answer(accepted))["task"])
    assert f"HTTP {status}" in read_wait(waiting)
    assert await harness.read(accepted) == waiting
    await harness.restart()
    assert cast("JsonObject", (await harness.await_answer(accepted))["task"]) == waiting
    await harness.adopt(accepted)
    harness.clock.ahead_ms += 7_000
    await harness.run_due("send", accepted.task_id, after_ms=0)
    await harness.until(accepted, Status.COMPLETED)
    task = await harness.read(accepted)
    assert state_of(task) == "COMPLETED"
    assert task["id"] == waiting["id"]
    assert harness.peer.texts == ["hello", "hello"]


async def test_streaming_caller_sees_each_wait_as_a_status(harness: Harness) -> None:
    busy = ScriptedResponse(429, headers={"Retry-After": "7"})
    harness.peer.answer_next(busy, busy)
    accepted = await harness.send("hello", wait="stream")
    watching = asyncio.create_task(harness.watch(accepted))
    for times in (1, 2):
        await wait_until(
            lambda: harness.peer.count("SendStreamingMessage") == times,  # noqa: B023
            15,
            "it was sent",
        )
        await until_held(harness, accepted)
        harness.clock.ahead_ms += 7_000
        await harness.run_due("send", accepted.task_id, after_ms=0)
    frames = await watching
    first, second = frames[:2]
    read_wait(cast("JsonObject", first["task"]))
    read_wait(cast("JsonObject", second["statusUpdate"]))
    assert state_of(await harness.read(accepted)) == "COMPLETED"


async def test_bare_message_of_an_agent_that_was_busy_completes_the_waiting_task(
    harness: Harness,
) -> None:
    harness.peer.answer_next(ScriptedResponse(429, headers={"Retry-After": "7"}))
    accepted = await harness.send("message hello")
    read_wait(cast("JsonObject", (await harness.await_answer(accepted))["task"]))
    await until_held(harness, accepted)
    harness.clock.ahead_ms += 7_000
    await harness.run_due("send", accepted.task_id, after_ms=0)
    await harness.until(accepted, Status.COMPLETED)
    assert "hello" in str((await harness.read(accepted))["artifacts"])


async def test_short_wait_is_not_reported_to_the_caller(harness: Harness) -> None:
    harness.peer.answer_next(ScriptedResponse(503, headers={"Retry-After": "2"}))
    accepted = await harness.send("message hello")
    response = asyncio.create_task(harness.await_answer(accepted))
    await until_held(harness, accepted)
    await harness.run_due("send", accepted.task_id, after_ms=2_000)
    assert "message" in await response


@pytest.mark.parametrize("wait", ["unary", "stream"])
@pytest.mark.parametrize(("status", "error"), [(429, PeerBusy), (503, PeerUnavailable)])
async def test_busy_agent_is_an_error_if_configured(
    harness: Harness, wait: WaitMode, status: int, error: type[PeerUnavailable]
) -> None:
    harness.timeouts = replace(harness.timeouts, refuses=True)
    await harness.restart()
    harness.peer.answer_next(ScriptedResponse(status, headers={"Retry-After": "7"}))
    accepted = await harness.send("hello", wait=wait)
    with pytest.raises(PeerUnavailable, match="takes no more work") as caught:
        await harness.await_answer(accepted)
    assert (type(caught.value), caught.value.retry_after_s) == (error, 7)
    await harness.until(accepted, Status.FAILED)
    assert harness.peer.texts == ["hello"]
    assert f"send:{accepted.task_id}" not in await harness.due(accepted.task_id)


async def test_message_that_no_agent_accepts_fails_after_its_limit(harness: Harness) -> None:
    harness.timeouts = replace(harness.timeouts, busy_s=10.0)
    await harness.restart()
    busy = ScriptedResponse(429, headers={"Retry-After": "7"})
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
async def test_waiting_message_is_sent_by_the_next_driver(harness: Harness) -> None:
    harness.peer.answer_next(ScriptedResponse(429, headers={"Retry-After": "60"}))
    accepted = await harness.send("hello")
    await until_held(harness, accepted)
    await harness.restart()
    await harness.adopt(accepted)
    assert harness.peer.texts == ["hello"]
    harness.clock.ahead_ms += 60_000
    await harness.run_due("send", accepted.task_id, after_ms=0)
    await harness.until(accepted, Status.COMPLETED)
    assert harness.peer.texts == ["hello", "hello"]
    assert harness.peer.count("ListTasks") == 0, "the agent is known not to have it"


@pytest.mark.requirement("LT-10")
async def test_message_of_the_next_driver_equals_the_first(harness: Harness) -> None:
    before, _ = await harness.talk("chunks 1")
    message = harness.message("go on")
    message["referenceTaskIds"] = [before.facade]
    params: JsonObject = {
        "configuration": {"acceptedOutputModes": ["text/plain"]},
        "metadata": {"tier": "gold"},
    }
    harness.peer.answer_next(ScriptedResponse(429, headers={"Retry-After": "60"}))
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


async def test_busy_agent_without_retry_after_is_retried_with_backoff(harness: Harness) -> None:
    harness.peer.answer_next(ScriptedResponse(429), ScriptedResponse(429))
    accepted = await harness.send("hello")
    for times in (1, 2):
        await wait_until(lambda: harness.peer.count("SendMessage") == times, 15, "it was sent")  # noqa: B023
        await until_held(harness, accepted)
        await harness.run_due("send", accepted.task_id, after_ms=times * 1_000)
    await harness.until(accepted, Status.COMPLETED)
    assert harness.peer.count("SendMessage") == 3


async def test_waiting_message_that_is_cancelled_is_not_sent(harness: Harness) -> None:
    harness.peer.answer_next(ScriptedResponse(503, headers={"Retry-After": "60"}))
    accepted = await harness.send("hello")
    await until_held(harness, accepted)
    await request_cancel(harness, accepted)
    await harness.until(accepted, Status.CANCELLED)
    assert harness.peer.count("SendMessage") == 1


@pytest.mark.parametrize("wait", ["unary", "stream"])
async def test_message_cancelled_while_it_waits_for_a_lease_is_not_sent(
    harness: Harness, wait: WaitMode
) -> None:
    dispatch, asked, may_send = harness.parts.dispatch, list[str](), asyncio.Event()

    def lose_lease_after_the_first_call(shard: Shard) -> Incarnation | None:
        asked.append("asked")
        is_first = len(asked) % 2 == 1
        return dispatch.drives(shard) if may_send.is_set() and is_first else None

    dispatch.find_sender = lose_lease_after_the_first_call
    accepted = await harness.send("hello", wait=wait)
    await wait_until(lambda: bool(asked), 15, "the driver waits for its lease")
    await request_cancel(harness, accepted)
    may_send.set()
    await harness.until(accepted, Status.CANCELLED)
    assert harness.peer.texts == []


async def request_cancel(harness: Harness, accepted: TurnAccepted) -> None:
    """Requests a cancel as CancelTask does, also for a task that callers do not see yet."""
    requested = TaskCancelRequested("ada", "user", "active_run")

    def request(decision: Decision) -> AppendOptions:
        record = decision.state(task_of(accepted))
        assert isinstance(record, TaskRecord)
        decision.add(decide(record, RequestCancel(requested)))
        return AppendOptions()

    await harness.parts.writes.decide(accepted.session_id, [task_of(accepted)], request)
    await harness.parts.dispatch.cancel(accepted.task_id)


async def test_wait_longer_than_the_run_is_an_error_with_retry_after(harness: Harness) -> None:
    harness.policy = RetryPolicy(total_timeout_ms=5_000)
    harness.peer.answer_next(ScriptedResponse(503, headers={"Retry-After": "7"}))
    accepted = await harness.send("hello")
    with pytest.raises(PeerUnavailable) as caught:
        await harness.await_answer(accepted)
    assert caught.value.retry_after_s == 7
    await harness.until(accepted, Status.FAILED)


async def test_poll_of_a_busy_agent_waits_for_its_retry_after(harness: Harness) -> None:
    async def story(turn: Turn) -> None:
        await turn.status("WORKING")
        harness.peer.subscribes = False
        busy = ScriptedResponse(429, headers={"Retry-After": "1"})
        harness.peer.answer_next(busy, busy)  # the subscription, and the poll after it
        await turn.drop()

    harness.peer.next(story)
    accepted = await harness.send("hello", wait="stream")
    await wait_until(lambda: harness.peer.count("GetTask"), 15, "it was polled")
    before = harness.clock.now_ms()
    (remote,) = harness.peer.tasks.values()
    remote.status("COMPLETED")
    await harness.until(accepted, Status.COMPLETED)
    assert harness.clock.now_ms() - before > 500
    assert harness.peer.count("GetTask") == 2


async def test_task_with_a_too_long_response_is_cancelled_at_the_agent(harness: Harness) -> None:
    endless = ScriptedResponse(200, b"[" + b" " * (24 * 1024 * 1024) + b"]")

    async def story(turn: Turn) -> None:
        await turn.status("WORKING")
        harness.peer.answer_next(endless, endless)
        await turn.drop()

    harness.peer.next(story)
    accepted = await harness.send("hello", wait="stream")
    record = await harness.until(accepted, Status.FAILED)
    assert record.last_error is not None
    assert record.last_error.code == "invalid_agent_response"
    await wait_until(lambda: harness.peer.count("CancelTask"), 15, "the agent has the cancel")


@pytest.mark.requirement("ST-8", "CF-7")
async def test_message_for_an_agent_with_an_open_circuit_waits_for_the_network(
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
