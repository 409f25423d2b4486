"""Pending deliveries are made by another driver, without a driver, after an outage of the agent, never twice (I9)."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import cast

import pytest

from passerelle.a2a_mapping.extensions import PERMISSION
from passerelle.core.approval.requests import ReturnAgain, ReturnOwed
from passerelle.core.batch import Batch, Incarnation
from passerelle.core.commands import GetAction, TurnAccepted
from passerelle.core.errors import NotFound, UnsupportedOperation
from passerelle.core.task.status import Status
from passerelle.core.wire.json import Json, JsonObject
from passerelle.core.wire.record import change
from passerelle.delegation.runs.run import Run
from tests.support.harness import ADA, BOB, Harness
from tests.support.scripted_tasks import Turn
from tests.support.waiting import wait_until

pytestmark = pytest.mark.anyio


def may_send_nothing(_run: Run) -> bool:
    return False


HOUR_MS = 3_600_000


async def until_postponed(harness: Harness, action: str) -> None:
    """Waits until the delivery of an answer is postponed."""

    async def is_done() -> bool:
        row = (await harness.due(action)).get(f"return:{action}")
        return row is not None and int(row) > harness.clock.now_ms() + 5_000

    await wait_until(is_done, 15, "the delivery is postponed")


async def until_returned(harness: Harness, action: str) -> None:
    """Waits until an answer is known to be delivered."""

    async def is_done() -> bool:
        return (await harness.service.read(ADA, GetAction(action)))["returnState"] == "returned"

    await wait_until(is_done, 20, "the answer is known to be delivered")


@pytest.mark.requirement("I9", "CMD-14")
async def test_answer_is_delivered_when_the_agent_is_reachable_again(
    harness: Harness,
) -> None:
    accepted, _ = await harness.talk("ask Which colour?")
    view = await harness.question(accepted)
    action = str(view["actionId"])
    await harness.peer.stop()
    await harness.respond(view, option_id="reply", content={"text": "blue"})
    await until_postponed(harness, action)
    assert harness.parts.dispatch.find(accepted.task_id) is not None
    await harness.peer.start()
    await harness.run_due("return", action, after_ms=0)
    await harness.until(accepted, Status.COMPLETED)
    assert harness.peer.texts == ["ask Which colour?", "blue"]


@pytest.mark.requirement("I9", "CMD-14")
async def test_cancelling_answer_is_delivered_when_the_agent_is_reachable_again(
    harness: Harness,
) -> None:
    accepted, _ = await harness.talk("ask Which colour?")
    view = await harness.question(accepted)
    action = str(view["actionId"])
    await harness.peer.stop()
    await harness.respond(view, option_id="cancel")
    await until_postponed(harness, action)
    await harness.peer.start()
    await harness.run_due("return", action, after_ms=0)
    await harness.until(accepted, Status.CANCELLED)
    await until_returned(harness, action)


async def test_due_row_does_not_deliver_an_answer_that_the_driver_is_delivering(
    harness: Harness,
) -> None:
    accepted, _ = await harness.talk("ask Which colour?")
    view = await harness.question(accepted)
    action, go_on = str(view["actionId"]), asyncio.Event()

    async def hold(batch: Batch) -> None:
        if any(b'"outcome":"returned"' in event.body for event in batch.events):
            await go_on.wait()

    harness.log.before_append = hold
    await harness.respond(view, option_id="cancel")
    await harness.until(accepted, Status.CANCELLED)
    await harness.run_due("return", action, after_ms=0)
    assert (await harness.service.read(ADA, GetAction(action)))["returnState"] == "returning"
    go_on.set()
    await until_returned(harness, action)


async def test_answer_refused_by_the_agent_is_not_resent_without_a_request(
    harness: Harness,
) -> None:
    async def refuse(turn: Turn) -> None:
        await turn.refuse(-32602, "that is no answer")

    harness.peer.keeps_history = False
    accepted, _ = await harness.talk("ask Which colour?")
    view = await harness.question(accepted)
    harness.peer.next(refuse)
    await harness.respond(view, option_id="reply", content={"text": "blue"})
    action = str(view["actionId"])

    async def is_given_up() -> bool:
        found = await harness.service.read(ADA, GetAction(action))
        return found["returnState"] == "undeliverable"

    await wait_until(is_given_up, 20, "the answer cannot be delivered")
    assert harness.peer.texts == ["ask Which colour?", "blue"]
    # The agent still waits, so the same request is opened again as a new approval.
    again = await harness.question(accepted)
    assert (again["title"], again["actionId"] != action) == (view["title"], True)
    record = await harness.record(accepted)
    assert (record.status, record.open_actions) == (Status.WAITING_INPUT, (again["actionId"],))
    assert record.attempts[-1].pending_message_id is None
    error = record.attempts[-1].last_error
    assert error is not None
    assert (error.message, error.native) == ("that is no answer", "-32602")
    with pytest.raises(NotFound):
        await harness.service.execute(BOB, ReturnAgain(action), None)
    pending = await harness.service.execute(ADA, ReturnAgain(action), None)
    assert pending == ReturnOwed(action, "owed", "pending")
    await harness.until(accepted, Status.COMPLETED)
    assert harness.peer.texts == ["ask Which colour?", "blue", "blue"]
    with pytest.raises(UnsupportedOperation):
        await harness.service.execute(ADA, ReturnAgain(action), None)


async def drop_connection(turn: Turn) -> None:
    """The answer is lost: the connection breaks, and the agent keeps waiting."""
    await turn.drop()


async def lose_answer(harness: Harness) -> tuple[TurnAccepted, str]:
    """Sends an answer that is lost; the agent keeps no history that could show it."""
    harness.peer.keeps_history = False
    accepted, _ = await harness.talk("ask Which colour?")
    view = await harness.question(accepted)
    harness.peer.next(drop_connection)
    await harness.respond(view, option_id="reply", content={"text": "blue"})
    # The row is postponed before anything is sent.
    await wait_until(lambda: len(harness.peer.messages) == 2, 10, "the answer was sent")
    await until_postponed(harness, str(view["actionId"]))
    return accepted, str(view["actionId"])


@pytest.mark.requirement("I9", "CMD-14")
@pytest.mark.parametrize("subscribes", [True, False])
async def test_driver_resends_a_lost_answer_in_time_without_its_due_row(
    harness: Harness, *, subscribes: bool
) -> None:
    harness.peer.subscribes = subscribes
    accepted, _ = await lose_answer(harness)
    # The agent is polled rarely, and another instance has the duty of the shard.
    harness.timeouts = replace(harness.timeouts, poll_s=60.0, poll_max_s=60.0, look_s=60.0)
    await harness.restart()
    await harness.adopt(accepted)
    await harness.until(accepted, Status.COMPLETED)
    assert harness.peer.texts == ["ask Which colour?", "blue", "blue"]


async def test_request_is_reopened_if_the_agent_has_the_answer_and_still_waits(
    harness: Harness,
) -> None:
    """The refusal was in flight when the gateway that had sent the answer stopped."""
    accepted, _ = await harness.talk("ask Which colour?")
    view = await harness.question(accepted)
    harness.peer.next(drop_connection)
    await harness.respond(view, option_id="reply", content={"text": "blue"})
    await wait_until(lambda: len(harness.peer.messages) == 2, 10, "the answer was sent")
    await until_postponed(harness, str(view["actionId"]))
    await harness.restart()
    await harness.adopt(accepted)
    await harness.until(accepted, Status.WAITING_INPUT)
    again = await harness.question(accepted)
    assert (again["title"], again["actionId"] != view["actionId"]) == (view["title"], True)
    await harness.respond(again, "dec_2", option_id="reply", content={"text": "red"})
    await harness.until(accepted, Status.COMPLETED)
    assert harness.peer.texts == ["ask Which colour?", "blue", "red"]


async def test_lost_answer_is_resent_after_the_configured_delivery_grace(harness: Harness) -> None:
    accepted, action = await lose_answer(harness)
    harness.timeouts = replace(harness.timeouts, doubt_s=60.0)
    await harness.restart()
    await harness.adopt(accepted)
    await wait_until(lambda: harness.peer.count("SubscribeToTask") > 0, 10, "the agent was asked")
    harness.clock.ahead_ms += 50_000
    harness.parts.dispatch.wake(accepted.task_id, action)
    await wait_until(
        lambda: harness.peer.count("SubscribeToTask") > 1, 10, "the agent was asked again"
    )
    assert harness.peer.texts == ["ask Which colour?", "blue"]
    harness.clock.ahead_ms += 11_000
    harness.parts.dispatch.wake(accepted.task_id, action)
    await harness.until(accepted, Status.COMPLETED)
    assert harness.peer.texts == ["ask Which colour?", "blue", "blue"]


async def test_two_concurrent_drivers_send_an_answer_once(harness: Harness) -> None:
    harness.peer.keeps_history = False
    accepted, _ = await harness.talk("ask Which colour?")
    view = await harness.question(accepted)
    first = harness.parts.dispatch
    await harness.start()
    await harness.adopt(accepted)
    beginning: list[str] = []
    both_began = asyncio.Event()

    async def await_both(batch: Batch) -> None:
        if any(b'"outcome":"returning"' in event.body for event in batch.events):
            beginning.append(batch.op)
            if len(beginning) == 2:
                both_began.set()
            await asyncio.wait_for(both_began.wait(), 15)

    harness.log.before_append = await_both
    harness.peer.hold()
    await harness.respond(view, option_id="reply", content={"text": "blue"})
    first.wake(accepted.task_id, str(view["actionId"]))
    await wait_until(lambda: "blue" in harness.peer.texts, 15, "one driver has sent it")

    def has_gone_on() -> bool:
        return harness.peer.count("SubscribeToTask") > 0 or len(harness.peer.messages) > 2

    await wait_until(has_gone_on, 15, "the other driver has continued")
    harness.peer.release_all()
    await harness.until(accepted, Status.COMPLETED)
    await wait_until(
        lambda: first.find(accepted.task_id) is None, 15, "the other driver has seen it"
    )
    assert len(beginning) == 2
    assert harness.peer.texts == ["ask Which colour?", "blue"]


@pytest.mark.requirement("I9")
async def test_concurrent_adoptions_start_one_driver(harness: Harness) -> None:
    accepted = await harness.send("silent", wait="stream")
    await harness.until(accepted, Status.QUEUED)
    await harness.restart()
    await asyncio.gather(*(harness.adopt(accepted) for _ in range(5)))
    await wait_until(lambda: harness.peer.count("SubscribeToTask"), 15, "the run is followed")
    for _ in range(20):
        await asyncio.sleep(0)
    assert harness.peer.count("SubscribeToTask") == 1


def permission_form(native: str) -> JsonObject:
    """One approval request in the form of the gateway's own extension."""
    return {
        "action_id": native,
        "rev": 1,
        "digest": "sha256:00",
        "kind": "permission",
        "title": f"Do {native}",
        "subject": {"type": "tool_call", "name": native},
        "options": [
            {"option_id": "yes", "name": "Allow", "kind": "allow_once"},
            {"option_id": "no", "name": "Reject", "kind": "reject_once"},
        ],
        "expires_at": "2099-01-02T00:00:00.000Z",
        "risk": "low",
    }


async def ask_both(turn: Turn) -> None:
    forms: list[Json] = [{"data": {PERMISSION: permission_form(name)}} for name in ("one", "two")]
    await turn.status("INPUT_REQUIRED", "May I?", forms)


@pytest.mark.requirement("CMD-14")
@pytest.mark.parametrize("restarts", [False, True])
async def test_requests_of_one_pause_are_answered_in_one_message(
    harness: Harness, *, restarts: bool
) -> None:
    harness.peer.next(ask_both)
    accepted, _ = await harness.talk("go")
    actions = (await harness.record(accepted)).open_actions
    views = [await harness.service.read(ADA, GetAction(action)) for action in actions]
    assert views[0]["groupId"] == views[1]["groupId"]
    await harness.respond(views[0], "dec_1", option_id="yes")
    polls = harness.peer.count("GetTask")
    await wait_until(
        lambda: harness.peer.count("GetTask") > polls + 2, 15, "the agent was polled again"
    )
    assert len(harness.peer.messages) == 1
    if restarts:
        await harness.restart()
        await harness.adopt(accepted)
    await harness.respond(views[1], "dec_2", option_id="no")
    await harness.until(accepted, Status.COMPLETED)
    assert len(harness.peer.messages) == 2
    parts = cast("list[JsonObject]", harness.peer.messages[1]["parts"])
    answered = [cast("JsonObject", cast("JsonObject", part["data"])[PERMISSION]) for part in parts]
    assert sorted(str(form["action_id"]) for form in answered) == ["one", "two"]


@pytest.mark.requirement("I9")
async def test_pending_answer_is_undeliverable_after_its_task_ends(
    harness: Harness,
) -> None:
    accepted, _ = await harness.talk("ask Which colour?")
    view = await harness.question(accepted)
    action = str(view["actionId"])
    await harness.restart()
    await harness.respond(view, option_id="reply", content={"text": "blue"})
    await harness.run_due("timeout", accepted.task_id, after_ms=HOUR_MS)
    await harness.until(accepted, Status.TIMED_OUT)
    await harness.run_due("return", action, after_ms=0)
    closed = await harness.service.read(ADA, GetAction(action))
    assert (closed["state"], closed["returnState"]) == ("answered", "undeliverable")
    assert closed["returnError"] == "peer_terminal"
    assert f"return:{action}" not in await harness.due(accepted.task_id)
    assert len(harness.peer.messages) == 1


async def test_approvals_of_a_failed_task_are_closed(harness: Harness) -> None:
    accepted, _ = await harness.talk("ask Which colour?")
    view = await harness.question(accepted)
    next(iter(harness.peer.tasks.values())).forgotten = True
    await harness.until(accepted, Status.LOST)
    harness.clock.ahead_ms += 60_000
    await harness.until(accepted, Status.FAILED)
    closed = await harness.service.read(ADA, GetAction(str(view["actionId"])))
    assert closed["state"] == "cancelled"
    assert await harness.store.log.read_open(accepted.session_id) == []


@pytest.mark.requirement("I9")
async def test_total_limit_ends_a_task_whose_agent_ignores_the_cancel(harness: Harness) -> None:
    harness.peer.on_cancel = "ignored"
    accepted = await harness.send("silent", wait="stream")
    await harness.until(accepted, Status.QUEUED)
    await harness.cancel(accepted)
    await harness.until(accepted, Status.CANCELLING)
    await harness.run_due("timeout", accepted.task_id, after_ms=HOUR_MS)
    record = await harness.until(accepted, Status.FAILED)
    assert record.cancel_requested_by == "ada"
    assert harness.parts.dispatch.find(accepted.task_id) is None
    left = await harness.due(accepted.task_id)
    assert {f"timeout:{accepted.task_id}", f"cancel:{accepted.task_id}"}.isdisjoint(left)


@pytest.mark.requirement("I9")
async def test_total_limit_ends_a_task_driven_by_another_instance(harness: Harness) -> None:
    accepted = await harness.send("silent", wait="stream")
    await harness.until(accepted, Status.QUEUED)
    await harness.restart()
    await harness.replace_driver(accepted, Incarnation("inst_other", 3))
    await harness.run_due("timeout", accepted.task_id, after_ms=HOUR_MS)
    await harness.until(accepted, Status.TIMED_OUT)
    assert harness.peer.count("CancelTask") == 1


@pytest.mark.requirement("I9", "CMD-9")
async def test_cancel_of_a_task_driven_by_another_instance_reaches_the_agent(
    harness: Harness,
) -> None:
    accepted = await harness.send("silent", wait="stream")
    await harness.until(accepted, Status.QUEUED)
    elsewhere = harness.parts.dispatch
    await harness.start()
    await harness.cancel(accepted)
    await harness.until(accepted, Status.CANCELLED)
    await elsewhere.drain()
    assert harness.peer.count("CancelTask") == 1


async def test_answer_accepted_by_another_instance_is_found_by_the_driver(
    harness: Harness,
) -> None:
    async def ask_and_stay(turn: Turn) -> None:
        await turn.status("INPUT_REQUIRED", "Which colour?")
        await asyncio.Event().wait()

    harness.timeouts = replace(harness.timeouts, look_s=0.05)
    await harness.restart()
    harness.peer.next(ask_and_stay)
    accepted = await harness.send("go", wait="stream")
    await harness.until(accepted, Status.WAITING_INPUT)
    view = await harness.question(accepted)
    driving = harness.parts.dispatch
    await harness.start()
    await harness.respond(view, option_id="reply", content={"text": "blue"})
    await harness.until(accepted, Status.COMPLETED)
    await driving.drain()
    assert harness.peer.texts == ["go", "blue"]


async def test_input_for_a_task_driven_by_another_instance_reaches_the_agent(
    harness: Harness,
) -> None:
    accepted = await harness.send("silent", wait="stream")
    await harness.until(accepted, Status.QUEUED)
    driving = harness.parts.dispatch
    await harness.start()
    await harness.send("and this", task=accepted.facade)
    await wait_until(lambda: "and this" in harness.peer.texts, 15, "the peer has the input")
    await driving.drain()


@pytest.mark.requirement("I9")
async def test_input_not_sent_because_of_a_crash_is_sent_when_due(
    harness: Harness,
) -> None:
    accepted = await harness.send("silent", wait="stream")
    await harness.until(accepted, Status.QUEUED)
    driver = harness.parts.dispatch.find(accepted.task_id)
    assert driver is not None
    driver.deps = change(driver.deps, may_send=may_send_nothing)
    turn = await harness.send("and this", task=accepted.facade)
    await harness.restart()
    await harness.adopt(accepted)
    assert "and this" not in harness.peer.texts
    await harness.run_due("input", f"{accepted.task_id}:{turn.turn_id}", after_ms=40_000)
    await wait_until(lambda: "and this" in harness.peer.texts, 15, "the peer has the input")


@pytest.mark.requirement("I9")
async def test_delivered_input_has_no_due_row(harness: Harness) -> None:
    accepted = await harness.send("silent", wait="stream")
    await harness.until(accepted, Status.QUEUED)
    turn = await harness.send("and this", task=accepted.facade)
    member = f"input:{accepted.task_id}:{turn.turn_id}"

    async def is_settled() -> bool:
        return member not in await harness.due(accepted.task_id)

    await wait_until(is_settled, 15, "the input has no due row")
    assert harness.peer.texts.count("and this") == 1
