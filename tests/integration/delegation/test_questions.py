"""An agent asks: one approval, the first valid answer wins, every device gets the winner, and the agent one answer."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import cast

import pytest

from passerelle.core.commands import ActionAnswered, GetAction, ListTasks
from passerelle.core.errors import ActionClosed, CallerError, Forbidden, NotFound
from passerelle.core.payloads.task import TaskCancelled, TaskCancelRequested
from passerelle.core.principal import AccessScope
from passerelle.core.task.status import Status
from passerelle.core.wire.json import JsonObject
from tests.support.harness import ADA, BOB, Harness
from tests.support.scripted_behaviours import ask
from tests.support.scripted_tasks import Turn
from tests.support.waiting import wait_until

pytestmark = pytest.mark.anyio

DAY_MS = 24 * 3600 * 1000


@pytest.mark.requirement("EVC-10", "ID-9")
async def test_request_is_opened_once_and_the_task_waits_for_it(harness: Harness) -> None:
    accepted, answer = await harness.talk("ask Which colour?")
    task = cast("JsonObject", answer["task"])
    assert cast("JsonObject", task["status"])["state"] == "TASK_STATE_INPUT_REQUIRED"
    record = await harness.record(accepted)
    assert (record.status, len(record.open_actions)) == (Status.WAITING_INPUT, 1)
    polls = harness.peer.count("GetTask")
    await wait_until(
        lambda: harness.peer.count("GetTask") > polls + 2, 15, "the agent was polled again"
    )
    again = await harness.record(accepted)
    assert again.open_actions == record.open_actions
    assert again.status is Status.WAITING_INPUT
    types = await harness.types(accepted)
    assert types.count("action.required") == 1
    view = await harness.question(accepted)
    assert view["state"] == "pending"


@pytest.mark.requirement("EVC-10", "ID-9", "CMD-14")
async def test_answer_by_command_reaches_the_agent_once_and_the_task_completes(
    harness: Harness,
) -> None:
    accepted, _ = await harness.talk("ask Which colour?")
    view = await harness.question(accepted)
    watching = asyncio.create_task(harness.watch(accepted.facade))
    answered = await harness.respond(view, option_id="reply", content={"text": "blue"})
    assert answered.outcome == "won"
    await harness.until(accepted, Status.COMPLETED)
    frames = await watching
    assert "answer: blue" in str(frames)
    assert harness.peer.texts == ["ask Which colour?", "blue"]
    assert harness.peer.messages[1]["taskId"] == next(iter(harness.peer.tasks))
    closed = await harness.service.read(ADA, GetAction(str(view["actionId"])))
    assert (closed["state"], closed["returnState"]) == ("answered", "returned")
    types = await harness.types(accepted)
    assert types.count("action.resolved") == 1


@pytest.mark.requirement("LT-5", "CMD-14")
async def test_answer_by_message_is_sent_as_the_callers_message(harness: Harness) -> None:
    accepted, _ = await harness.talk("ask Which colour?")
    message = harness.message("green")
    second = await harness.send("", task=accepted.facade, message=message)
    answer = cast("JsonObject", (await harness.await_answer(second))["task"])
    assert cast("JsonObject", answer["status"])["state"] == "TASK_STATE_COMPLETED"
    assert harness.peer.messages[1]["messageId"] == message["messageId"]
    assert harness.peer.texts[1] == "green"
    history = cast("list[JsonObject]", (await harness.read(accepted))["history"])
    assert [str(item["messageId"]) for item in history].count(str(message["messageId"])) == 1


@pytest.mark.requirement("LT-5", "LT-8")
async def test_old_request_at_the_start_of_a_response_does_not_end_the_turn(
    harness: Harness,
) -> None:
    """An SDK agent opens the stream of a follow-up with its current Task, which still waits."""

    async def go_on(turn: Turn) -> None:
        (await turn.open()).show()
        await turn.status("WORKING")
        await turn.status("COMPLETED")

    accepted, _ = await harness.talk("ask Which colour?")
    harness.peer.next(go_on)
    second = await harness.send("green", task=accepted.facade)
    answer = cast("JsonObject", (await harness.await_answer(second))["task"])
    assert cast("JsonObject", answer["status"])["state"] == "TASK_STATE_COMPLETED"
    types = await harness.types(accepted)
    ends = [place for place, name in enumerate(types) if name == "turn.completed"]
    assert (len(ends), ends[-1] > types.index("task.completed")) == (2, True)


@pytest.mark.requirement("LT-5", "CMD-14")
async def test_answer_with_the_id_of_an_earlier_message_reaches_the_agent(
    harness: Harness,
) -> None:
    """Message ids need not be unique: the id in the agent's history is that of the first message."""
    message = harness.message("ask Which colour?")
    accepted = await harness.send("", message=message)
    await harness.await_answer(accepted)
    again: JsonObject = {**message, "parts": [{"text": "green"}]}
    second = await harness.send("", task=accepted.facade, message=again)
    answer = cast("JsonObject", (await harness.await_answer(second))["task"])
    assert cast("JsonObject", answer["status"])["state"] == "TASK_STATE_COMPLETED"
    assert harness.peer.texts == ["ask Which colour?", "green"]


@pytest.mark.requirement("I7", "CMD-14")
async def test_first_of_24_answers_wins_and_each_loser_gets_the_winner(harness: Harness) -> None:
    accepted, _ = await harness.talk("ask Which colour?")
    view = await harness.question(accepted)
    racers = [
        replace(ADA, device=f"dev_{number}", device_name=f"Phone {number}") for number in range(24)
    ]

    async def race(number: int) -> ActionAnswered | ActionClosed:
        try:
            return await harness.respond(
                view,
                f"dec_{number}",
                who=racers[number],
                option_id="reply",
                content={"text": f"answer-{number}"},
            )
        except ActionClosed as closed:
            return closed

    outcomes = await asyncio.gather(*(race(number) for number in range(24)))
    won = [outcome for outcome in outcomes if isinstance(outcome, ActionAnswered)]
    lost = [outcome for outcome in outcomes if isinstance(outcome, ActionClosed)]
    assert (len(won), len(lost)) == (1, 23)
    winner = won[0].decision
    assert winner is not None
    assert {closed.state for closed in lost} == {"already_resolved"}
    assert {str(closed.winner["deviceName"]) for closed in lost} == {winner.device_name}
    assert {str(closed.winner["optionId"]) for closed in lost} == {"reply"}
    await harness.until(accepted, Status.COMPLETED)
    assert (await harness.types(accepted)).count("action.resolved") == 1
    assert len(harness.peer.messages) == 2
    assert harness.peer.texts[1] == cast("JsonObject", winner.content)["text"]


@pytest.mark.requirement("CMD-14")
async def test_repeated_answer_is_a_replay_and_is_not_sent_again(harness: Harness) -> None:
    accepted, _ = await harness.talk("ask Which colour?")
    view = await harness.question(accepted)
    first = await harness.respond(view, "dec_same", option_id="reply", content={"text": "blue"})
    again = await harness.respond(view, "dec_same", option_id="reply", content={"text": "blue"})
    assert (first.outcome, again.outcome) == ("won", "replayed")
    assert first.decision == again.decision
    await harness.until(accepted, Status.COMPLETED)
    assert len(harness.peer.messages) == 2


@pytest.mark.requirement("CMD-14")
async def test_concurrent_equal_answers_win_once(harness: Harness) -> None:
    accepted, _ = await harness.talk("ask Which colour?")
    view = await harness.question(accepted)
    answers = (
        harness.respond(view, "dec_same", option_id="reply", content={"text": "blue"})
        for _ in range(2)
    )
    both = await asyncio.gather(*answers)
    assert sorted(one.outcome for one in both) == ["replayed", "won"]
    assert both[0].decision == both[1].decision
    await harness.until(accepted, Status.COMPLETED)


@pytest.mark.requirement("EVC-10")
async def test_invalid_answers_leave_the_task_waiting(harness: Harness) -> None:
    accepted, _ = await harness.talk("ask Which colour?")
    view = await harness.question(accepted)
    powerless = replace(ADA, scopes=frozenset({AccessScope.CALL}))
    with pytest.raises(NotFound):
        await harness.respond(view, who=BOB, option_id="reply", content={"text": "x"})
    with pytest.raises(Forbidden):
        await harness.respond(view, who=powerless, option_id="reply", content={"text": "x"})
    for wrong in ({"rev": 99}, {"digest": "sha256:00"}):
        with pytest.raises(CallerError):
            await harness.respond({**view, **wrong}, option_id="reply", content={"text": "x"})
    with pytest.raises(CallerError):
        await harness.respond(view, option_id="nonsense")
    other = await harness.send("something else", context_id=accepted.context_id)
    await harness.await_answer(other)
    record = await harness.record(accepted)
    assert (record.status, len(record.open_actions)) == (Status.WAITING_INPUT, 1)
    assert (await harness.service.read(ADA, GetAction(str(view["actionId"]))))["state"] == "pending"


async def test_answer_is_delivered_while_the_agent_keeps_its_stream_open(harness: Harness) -> None:
    async def ask_and_stay(turn: Turn) -> None:
        await turn.status("INPUT_REQUIRED", "Which colour?")
        await asyncio.Event().wait()

    harness.peer.next(ask_and_stay)
    accepted = await harness.send("go", wait="stream")
    watching = asyncio.create_task(harness.watch(accepted))
    await harness.until(accepted, Status.WAITING_INPUT)
    view = await harness.question(accepted)
    await harness.respond(view, option_id="reply", content={"text": "blue"})
    await harness.until(accepted, Status.COMPLETED)
    assert harness.peer.texts == ["go", "blue"]
    assert str(await watching).count("answer: blue") == 1


@pytest.mark.kit("AUTH-INTASK-004", "AUTH-INTASK-006")
async def test_authorization_request_in_text_is_answered_by_the_callers_message(
    harness: Harness,
) -> None:
    accepted, _ = await harness.talk("auth Sign in first.")
    record = await harness.record(accepted)
    assert record.status in {Status.WAITING_PERMISSION, Status.WAITING_RESOURCE}
    view = await harness.question(accepted)
    second = await harness.send("yes, I have", task=accepted.facade)
    answer = cast("JsonObject", (await harness.await_answer(second))["task"])
    assert cast("JsonObject", answer["status"])["state"] == "TASK_STATE_COMPLETED"
    assert harness.peer.texts[1:] == ["yes, I have"]
    closed = await harness.service.read(ADA, GetAction(str(view["actionId"])))
    assert closed["state"] == "answered_by_caller"
    assert "yes, I have" not in str(closed)
    with pytest.raises(ActionClosed):
        await harness.respond(view, option_id="reply", content={"text": "late"})


@pytest.mark.requirement("CF-7", "ST-8")
async def test_agent_that_continues_without_an_answer_closes_the_request(harness: Harness) -> None:
    harness.peer.hold()
    accepted = await harness.send("auth-resume", wait="stream")
    harness.peer.release(2)
    record = await harness.until(accepted, Status.WAITING_RESOURCE)
    assert await harness.resources(accepted) == ["credential"]
    view = await harness.service.read(ADA, GetAction(record.open_actions[0]))
    harness.peer.release_all()
    await harness.until(accepted, Status.COMPLETED)
    closed = await harness.service.read(ADA, GetAction(str(view["actionId"])))
    assert closed["state"] == "cancelled"
    with pytest.raises(ActionClosed):
        await harness.respond(view, option_id="reply", content={"text": "late"})


@pytest.mark.requirement("I6", "I9", "CMD-9", "ST-13", "CF-15", "TEV-12")
async def test_request_expires_by_its_due_row_and_never_allows(harness: Harness) -> None:
    accepted, _ = await harness.talk("auth Sign in first.")
    view = await harness.question(accepted)
    action = str(view["actionId"])
    due = await harness.due(accepted.task_id)
    assert f"expire:{action}" in due
    await harness.run_due("expire", action, after_ms=DAY_MS)
    closed = await harness.service.read(ADA, GetAction(action))
    assert closed["state"] == "expired"
    await harness.until(accepted, Status.CANCELLED)
    assert harness.peer.count("CancelTask") == 1
    assert len(harness.peer.messages) == 1
    cancels = [
        event.fact.payload
        for event in await harness.events(accepted)
        if isinstance(event.fact.payload, TaskCancelRequested | TaskCancelled)
    ]
    assert [(type(one), one.source) for one in cancels] == [
        (TaskCancelRequested, "policy"),
        (TaskCancelled, "policy"),
    ]


@pytest.mark.requirement("I6")
async def test_request_survives_the_connection_and_the_process(harness: Harness) -> None:
    accepted, _ = await harness.talk("ask Which colour?")
    view = await harness.question(accepted)
    await harness.peer.stop()
    await harness.restart()
    assert await harness.question(accepted) == view
    await harness.peer.start()
    await harness.adopt(accepted)
    await harness.respond(view, option_id="reply", content={"text": "blue"})
    await harness.until(accepted, Status.COMPLETED)
    assert harness.peer.texts == ["ask Which colour?", "blue"]


@pytest.mark.requirement("I9")
async def test_answer_without_a_driver_is_due_and_delivered_after_an_adoption(
    harness: Harness,
) -> None:
    accepted, _ = await harness.talk("ask Which colour?")
    view = await harness.question(accepted)
    await harness.restart()
    await harness.respond(view, option_id="reply", content={"text": "blue"})
    assert len(harness.peer.messages) == 1
    assert f"return:{view['actionId']}" in await harness.due(accepted.task_id)
    await harness.adopt(accepted)
    await harness.run_due("return", str(view["actionId"]), after_ms=0)
    await harness.until(accepted, Status.COMPLETED)
    assert harness.peer.texts == ["ask Which colour?", "blue"]


async def test_cancelled_request_cancels_the_task(harness: Harness) -> None:
    accepted, _ = await harness.talk("ask Which colour?")
    view = await harness.question(accepted)
    await harness.respond(view, option_id="cancel")
    await harness.until(accepted, Status.CANCELLED)
    assert harness.peer.count("CancelTask") == 1
    page = await harness.service.read(ADA, ListTasks("echo", state="TASK_STATE_CANCELED"))
    assert page["totalSize"] == 1


@pytest.mark.requirement("EVC-10")
async def test_second_request_of_a_task_is_a_new_approval(harness: Harness) -> None:
    harness.peer.on("blue", ask)
    accepted, _ = await harness.talk("ask Which colour?")
    first = await harness.question(accepted)
    await harness.respond(first, "dec_1", option_id="reply", content={"text": "blue Which shade?"})

    async def asks_again() -> bool:
        record = await harness.record(accepted)
        return bool(record.open_actions) and record.open_actions[0] != first["actionId"]

    await wait_until(asks_again, 15, "the second request is open")
    second = await harness.question(accepted)
    await harness.respond(second, "dec_2", option_id="reply", content={"text": "dark"})
    await harness.until(accepted, Status.COMPLETED)
    assert harness.peer.texts[1:] == ["blue Which shade?", "dark"]


async def test_repeated_request_without_id_and_time_is_a_new_approval(harness: Harness) -> None:
    async def ask_bare(turn: Turn) -> None:
        task = await turn.open()
        task.record["status"] = {
            "state": "TASK_STATE_INPUT_REQUIRED",
            "message": {"role": "ROLE_AGENT", "parts": [{"text": "Go on?"}]},
        }
        task.show()

    harness.peer.next(ask_bare, ask_bare)
    accepted, _ = await harness.talk("go")
    first = await harness.question(accepted)
    answering = await harness.send("yes", task=accepted.facade)
    await harness.await_answer(answering)
    second = await harness.question(accepted)
    assert second["actionId"] != first["actionId"]
    await harness.send("yes", task=accepted.facade)
    await harness.until(accepted, Status.COMPLETED)
    assert harness.peer.texts == ["go", "yes", "yes"]
