"""Agents that take no more work, or say too much: what the caller learns, and what the record says."""

from __future__ import annotations

import asyncio
from typing import cast

import pytest

from passerelle.core.commands import SubmitTurn, TurnAccepted, Wait
from passerelle.core.decision import Decision
from passerelle.core.errors import PeerUnavailable
from passerelle.core.facts import RetryPolicy
from passerelle.core.json import JsonObject
from passerelle.core.payloads.limit import Limited, RateLimitHit
from passerelle.core.payloads.task import TaskCancelRequested
from passerelle.core.status import Status
from passerelle.core.task import decide
from passerelle.core.task_commands import RequestCancel
from passerelle.core.task_record import TaskRecord
from passerelle.gateway.control.writes import Terms
from tests.support.house import ADA, House, task_of
from tests.support.scripted_peer import HttpAnswer
from tests.support.scripted_tasks import Turn
from tests.support.waiting import wait_until

pytestmark = pytest.mark.anyio


async def until_held(house: House, accepted: TurnAccepted) -> TaskRecord:
    """The record once the peer has not taken the message."""
    return await house.until(accepted, Status.WAITING_RESOURCE)


@pytest.mark.requirement("I9", "ST-8", "CF-7")
@pytest.mark.parametrize(("status", "is_limit"), [(429, True), (503, False)])
@pytest.mark.parametrize("wait", ["unary", "stream"])
async def test_message_for_a_busy_agent_waits_for_the_time_that_it_names(
    house: House, wait: Wait, status: int, *, is_limit: bool
) -> None:
    house.peer.answer_next(HttpAnswer(status, headers={"Retry-After": "7"}))
    accepted = await house.send("hello", wait=wait)
    hearing = asyncio.create_task(house.hear(accepted))
    record = await until_held(house, accepted)
    attempt = record.attempts[-1]
    assert record.status_reason is not None
    assert "takes no more work" in record.status_reason
    assert (attempt.pending_message_id, len(record.attempts)) == (None, 1)
    member = f"send:{accepted.task_id}"
    wait_ms = int((await house.due(accepted.task_id))[member]) - house.clock.now_ms()
    assert 6_000 < wait_ms <= 7_000
    await house.come_due("send", accepted.task_id, after_ms=6_000)
    assert house.peer.texts == ["hello"], "it is not tried before its time"
    await house.come_due("send", accepted.task_id, after_ms=1_000)
    assert "task" in await hearing
    assert house.peer.texts == ["hello", "hello"]
    assert len({str(message["messageId"]) for message in house.peer.messages}) == 1
    assert member not in await house.due(accepted.task_id)
    events = await house.types(accepted)
    assert (
        events.index("task.waiting") < events.index("task.resumed") < events.index("task.completed")
    )
    assert events[events.index("task.resumed") + 1] == "model.requested"
    facts = [event.fact.payload for event in await house.events(accepted)]
    hits = [payload for payload in facts if isinstance(payload, RateLimitHit)]
    wanted = RateLimitHit(Limited("peer", "echo"), "peer", 7_000, "429")
    assert hits == ([wanted] if is_limit else [])


@pytest.mark.requirement("I9")
async def test_message_that_is_held_back_is_sent_by_the_next_driver(house: House) -> None:
    house.peer.answer_next(HttpAnswer(429, headers={"Retry-After": "60"}))
    accepted = await house.send("hello")
    await until_held(house, accepted)
    await house.restart()
    await house.adopt(accepted)
    assert house.peer.texts == ["hello"]
    house.clock.ahead_ms += 60_000
    await house.come_due("send", accepted.task_id, after_ms=0)
    await house.until(accepted, Status.COMPLETED)
    assert house.peer.texts == ["hello", "hello"]
    assert house.peer.count("ListTasks") == 0, "it is known that the peer does not have it"


@pytest.mark.requirement("LT-10")
async def test_message_of_the_next_driver_says_all_that_the_first_one_said(house: House) -> None:
    before, _ = await house.talk("chunks 1")
    message = house.message("go on")
    message["referenceTaskIds"] = [before.facade]
    params: JsonObject = {
        "configuration": {"acceptedOutputModes": ["text/plain"]},
        "metadata": {"tier": "gold"},
    }
    house.peer.answer_next(HttpAnswer(429, headers={"Retry-After": "60"}))
    command = SubmitTurn(
        "echo", message, "a2a", "unary", context_id=before.context_id, params=params
    )
    accepted = await house.service.execute(ADA, command, None)
    assert isinstance(accepted, TurnAccepted)
    house.remember(accepted.session_id)
    await until_held(house, accepted)
    await house.restart()
    house.clock.ahead_ms += 60_000
    await house.adopt(accepted)
    await house.until(accepted, Status.COMPLETED)
    _, first, second = [one.params for one in house.peer.requests if one.method == "SendMessage"]
    assert second == first
    assert cast("JsonObject", second["message"])["referenceTaskIds"] == list(house.peer.tasks)[:1]
    assert second["metadata"] == {"tier": "gold"}


async def test_agent_that_names_no_time_is_tried_again_in_ours(house: House) -> None:
    house.peer.answer_next(HttpAnswer(429), HttpAnswer(429))
    accepted = await house.send("hello")
    for times in (1, 2):
        await wait_until(lambda: house.peer.count("SendMessage") == times, 15, "it was tried")  # noqa: B023
        await until_held(house, accepted)
        await house.come_due("send", accepted.task_id, after_ms=times * 1_000)
    await house.until(accepted, Status.COMPLETED)
    assert house.peer.count("SendMessage") == 3


async def test_message_that_is_held_back_and_cancelled_never_leaves(house: House) -> None:
    house.peer.answer_next(HttpAnswer(503, headers={"Retry-After": "60"}))
    accepted = await house.send("hello")
    await until_held(house, accepted)
    requested = TaskCancelRequested("ada", "user", "active_run")

    def wish(decision: Decision) -> Terms:
        record = decision.state(task_of(accepted))
        assert isinstance(record, TaskRecord)
        decision.add(decide(record, RequestCancel(requested)))
        return Terms()

    await house.service.writes.decide(accepted.session_id, [task_of(accepted)], wish)
    await house.service.dispatch.cancel(accepted.task_id)
    await house.until(accepted, Status.CANCELLED)
    assert house.peer.count("SendMessage") == 1


async def test_wait_that_would_outlast_the_run_is_an_error_with_its_time(house: House) -> None:
    house.policy = RetryPolicy(total_timeout_ms=5_000)
    house.peer.answer_next(HttpAnswer(503, headers={"Retry-After": "7"}))
    accepted = await house.send("hello")
    with pytest.raises(PeerUnavailable) as caught:
        await house.hear(accepted)
    assert caught.value.retry_after_s == 7
    await house.until(accepted, Status.FAILED)


async def test_agent_that_is_busy_with_questions_is_asked_when_it_says(house: House) -> None:
    async def story(turn: Turn) -> None:
        await turn.status("WORKING")
        house.peer.subscribes = False
        busy = HttpAnswer(429, headers={"Retry-After": "1"})
        house.peer.answer_next(busy, busy)  # the subscription, and the question after it
        await turn.drop()

    house.peer.next(story)
    accepted = await house.send("hello", wait="stream")
    await wait_until(lambda: house.peer.count("GetTask"), 15, "it was asked")
    before = house.clock.now_ms()
    (remote,) = house.peer.tasks.values()
    remote.status("COMPLETED")
    await house.until(accepted, Status.COMPLETED)
    assert house.clock.now_ms() - before > 500
    assert house.peer.count("GetTask") == 2


async def test_agent_whose_task_is_longer_than_may_be_read_is_told_to_stop(house: House) -> None:
    endless = HttpAnswer(200, b"[" + b" " * (16 * 1024 * 1024) + b"]")

    async def story(turn: Turn) -> None:
        await turn.status("WORKING")
        house.peer.answer_next(endless, endless)
        await turn.drop()

    house.peer.next(story)
    accepted = await house.send("hello", wait="stream")
    record = await house.until(accepted, Status.FAILED)
    assert record.last_error is not None
    assert record.last_error.code == "invalid_agent_response"
    await wait_until(lambda: house.peer.count("CancelTask"), 15, "the agent is told to stop")
