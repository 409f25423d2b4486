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
from tests.support.house import ADA, BOB, House
from tests.support.scripted_behaviours import ask
from tests.support.scripted_tasks import Turn
from tests.support.waiting import wait_until

pytestmark = pytest.mark.anyio

DAY_MS = 24 * 3600 * 1000


@pytest.mark.requirement("EVC-10", "ID-9")
async def test_request_is_opened_once_and_the_task_waits_for_it(house: House) -> None:
    accepted, answer = await house.talk("ask Which colour?")
    task = cast("JsonObject", answer["task"])
    assert cast("JsonObject", task["status"])["state"] == "TASK_STATE_INPUT_REQUIRED"
    record = await house.record(accepted)
    assert (record.status, len(record.open_actions)) == (Status.WAITING_INPUT, 1)
    polls = house.peer.count("GetTask")
    await wait_until(
        lambda: house.peer.count("GetTask") > polls + 2, 15, "the agent was polled again"
    )
    again = await house.record(accepted)
    assert again.open_actions == record.open_actions
    assert again.status is Status.WAITING_INPUT
    types = await house.types(accepted)
    assert types.count("action.required") == 1
    view = await house.question(accepted)
    assert view["state"] == "pending"


@pytest.mark.requirement("EVC-10", "ID-9", "CMD-14")
async def test_answer_by_command_reaches_the_agent_once_and_the_task_completes(
    house: House,
) -> None:
    accepted, _ = await house.talk("ask Which colour?")
    view = await house.question(accepted)
    watching = asyncio.create_task(house.watch(accepted.facade))
    answered = await house.respond(view, option_id="reply", content={"text": "blue"})
    assert answered.outcome == "won"
    await house.until(accepted, Status.COMPLETED)
    frames = await watching
    assert "answer: blue" in str(frames)
    assert house.peer.texts == ["ask Which colour?", "blue"]
    assert house.peer.messages[1]["taskId"] == next(iter(house.peer.tasks))
    closed = await house.service.read(ADA, GetAction(str(view["actionId"])))
    assert (closed["state"], closed["returnState"]) == ("answered", "returned")
    types = await house.types(accepted)
    assert types.count("action.resolved") == 1


@pytest.mark.requirement("LT-5", "CMD-14")
async def test_answer_by_message_is_sent_as_the_callers_message(house: House) -> None:
    accepted, _ = await house.talk("ask Which colour?")
    message = house.message("green")
    second = await house.send("", task=accepted.facade, message=message)
    answer = cast("JsonObject", (await house.hear(second))["task"])
    assert cast("JsonObject", answer["status"])["state"] == "TASK_STATE_COMPLETED"
    assert house.peer.messages[1]["messageId"] == message["messageId"]
    assert house.peer.texts[1] == "green"
    history = cast("list[JsonObject]", (await house.read(accepted))["history"])
    assert [str(item["messageId"]) for item in history].count(str(message["messageId"])) == 1


@pytest.mark.requirement("LT-5", "LT-8")
async def test_old_request_at_the_start_of_a_response_does_not_end_the_turn(
    house: House,
) -> None:
    """An SDK agent opens the stream of a follow-up with its current Task, which still waits."""

    async def go_on(turn: Turn) -> None:
        (await turn.open()).show()
        await turn.status("WORKING")
        await turn.status("COMPLETED")

    accepted, _ = await house.talk("ask Which colour?")
    house.peer.next(go_on)
    second = await house.send("green", task=accepted.facade)
    answer = cast("JsonObject", (await house.hear(second))["task"])
    assert cast("JsonObject", answer["status"])["state"] == "TASK_STATE_COMPLETED"
    types = await house.types(accepted)
    ends = [place for place, name in enumerate(types) if name == "turn.completed"]
    assert (len(ends), ends[-1] > types.index("task.completed")) == (2, True)


@pytest.mark.requirement("LT-5", "CMD-14")
async def test_answer_with_the_id_of_an_earlier_message_reaches_the_agent(
    house: House,
) -> None:
    """Message ids need not be unique: the id in the agent's history is that of the first message."""
    message = house.message("ask Which colour?")
    accepted = await house.send("", message=message)
    await house.hear(accepted)
    again: JsonObject = {**message, "parts": [{"text": "green"}]}
    second = await house.send("", task=accepted.facade, message=again)
    answer = cast("JsonObject", (await house.hear(second))["task"])
    assert cast("JsonObject", answer["status"])["state"] == "TASK_STATE_COMPLETED"
    assert house.peer.texts == ["ask Which colour?", "green"]


@pytest.mark.requirement("I7", "CMD-14")
async def test_first_of_24_answers_wins_and_each_loser_gets_the_winner(house: House) -> None:
    accepted, _ = await house.talk("ask Which colour?")
    view = await house.question(accepted)
    racers = [
        replace(ADA, device=f"dev_{number}", device_name=f"Phone {number}") for number in range(24)
    ]

    async def race(number: int) -> ActionAnswered | ActionClosed:
        try:
            return await house.respond(
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
    await house.until(accepted, Status.COMPLETED)
    assert (await house.types(accepted)).count("action.resolved") == 1
    assert len(house.peer.messages) == 2
    assert house.peer.texts[1] == cast("JsonObject", winner.content)["text"]


@pytest.mark.requirement("CMD-14")
async def test_repeated_answer_is_a_replay_and_is_not_sent_again(house: House) -> None:
    accepted, _ = await house.talk("ask Which colour?")
    view = await house.question(accepted)
    first = await house.respond(view, "dec_same", option_id="reply", content={"text": "blue"})
    again = await house.respond(view, "dec_same", option_id="reply", content={"text": "blue"})
    assert (first.outcome, again.outcome) == ("won", "replayed")
    assert first.decision == again.decision
    await house.until(accepted, Status.COMPLETED)
    assert len(house.peer.messages) == 2


@pytest.mark.requirement("CMD-14")
async def test_concurrent_equal_answers_win_once(house: House) -> None:
    accepted, _ = await house.talk("ask Which colour?")
    view = await house.question(accepted)
    answers = (
        house.respond(view, "dec_same", option_id="reply", content={"text": "blue"})
        for _ in range(2)
    )
    both = await asyncio.gather(*answers)
    assert sorted(one.outcome for one in both) == ["replayed", "won"]
    assert both[0].decision == both[1].decision
    await house.until(accepted, Status.COMPLETED)


@pytest.mark.requirement("EVC-10")
async def test_invalid_answers_leave_the_task_waiting(house: House) -> None:
    accepted, _ = await house.talk("ask Which colour?")
    view = await house.question(accepted)
    powerless = replace(ADA, scopes=frozenset({AccessScope.CALL}))
    with pytest.raises(NotFound):
        await house.respond(view, who=BOB, option_id="reply", content={"text": "x"})
    with pytest.raises(Forbidden):
        await house.respond(view, who=powerless, option_id="reply", content={"text": "x"})
    for wrong in ({"rev": 99}, {"digest": "sha256:00"}):
        with pytest.raises(CallerError):
            await house.respond({**view, **wrong}, option_id="reply", content={"text": "x"})
    with pytest.raises(CallerError):
        await house.respond(view, option_id="nonsense")
    other = await house.send("something else", context_id=accepted.context_id)
    await house.hear(other)
    record = await house.record(accepted)
    assert (record.status, len(record.open_actions)) == (Status.WAITING_INPUT, 1)
    assert (await house.service.read(ADA, GetAction(str(view["actionId"]))))["state"] == "pending"


async def test_answer_is_delivered_while_the_agent_keeps_its_stream_open(house: House) -> None:
    async def ask_and_stay(turn: Turn) -> None:
        await turn.status("INPUT_REQUIRED", "Which colour?")
        await asyncio.Event().wait()

    house.peer.next(ask_and_stay)
    accepted = await house.send("go", wait="stream")
    watching = asyncio.create_task(house.watch(accepted))
    await house.until(accepted, Status.WAITING_INPUT)
    view = await house.question(accepted)
    await house.respond(view, option_id="reply", content={"text": "blue"})
    await house.until(accepted, Status.COMPLETED)
    assert house.peer.texts == ["go", "blue"]
    assert str(await watching).count("answer: blue") == 1


@pytest.mark.kit("AUTH-INTASK-004", "AUTH-INTASK-006")
async def test_authorization_request_in_text_is_answered_by_the_callers_message(
    house: House,
) -> None:
    accepted, _ = await house.talk("auth Sign in first.")
    record = await house.record(accepted)
    assert record.status in {Status.WAITING_PERMISSION, Status.WAITING_RESOURCE}
    view = await house.question(accepted)
    second = await house.send("yes, I have", task=accepted.facade)
    answer = cast("JsonObject", (await house.hear(second))["task"])
    assert cast("JsonObject", answer["status"])["state"] == "TASK_STATE_COMPLETED"
    assert house.peer.texts[1:] == ["yes, I have"]
    closed = await house.service.read(ADA, GetAction(str(view["actionId"])))
    assert closed["state"] == "answered_by_caller"
    assert "yes, I have" not in str(closed)
    with pytest.raises(ActionClosed):
        await house.respond(view, option_id="reply", content={"text": "late"})


@pytest.mark.requirement("CF-7", "ST-8")
async def test_agent_that_continues_without_an_answer_closes_the_request(house: House) -> None:
    house.peer.hold()
    accepted = await house.send("auth-resume", wait="stream")
    house.peer.release(2)
    record = await house.until(accepted, Status.WAITING_RESOURCE)
    assert await house.resources(accepted) == ["credential"]
    view = await house.service.read(ADA, GetAction(record.open_actions[0]))
    house.peer.release_all()
    await house.until(accepted, Status.COMPLETED)
    closed = await house.service.read(ADA, GetAction(str(view["actionId"])))
    assert closed["state"] == "cancelled"
    with pytest.raises(ActionClosed):
        await house.respond(view, option_id="reply", content={"text": "late"})


@pytest.mark.requirement("I6", "I9", "CMD-9", "ST-13", "CF-15", "TEV-12")
async def test_request_expires_by_its_due_row_and_never_allows(house: House) -> None:
    accepted, _ = await house.talk("auth Sign in first.")
    view = await house.question(accepted)
    action = str(view["actionId"])
    due = await house.due(accepted.task_id)
    assert f"expire:{action}" in due
    await house.come_due("expire", action, after_ms=DAY_MS)
    closed = await house.service.read(ADA, GetAction(action))
    assert closed["state"] == "expired"
    await house.until(accepted, Status.CANCELLED)
    assert house.peer.count("CancelTask") == 1
    assert len(house.peer.messages) == 1
    cancels = [
        event.fact.payload
        for event in await house.events(accepted)
        if isinstance(event.fact.payload, TaskCancelRequested | TaskCancelled)
    ]
    assert [(type(one), one.source) for one in cancels] == [
        (TaskCancelRequested, "policy"),
        (TaskCancelled, "policy"),
    ]


@pytest.mark.requirement("I6")
async def test_request_survives_the_connection_and_the_process(house: House) -> None:
    accepted, _ = await house.talk("ask Which colour?")
    view = await house.question(accepted)
    await house.peer.stop()
    await house.restart()
    assert await house.question(accepted) == view
    await house.peer.start()
    await house.adopt(accepted)
    await house.respond(view, option_id="reply", content={"text": "blue"})
    await house.until(accepted, Status.COMPLETED)
    assert house.peer.texts == ["ask Which colour?", "blue"]


@pytest.mark.requirement("I9")
async def test_answer_without_a_driver_is_due_and_delivered_after_an_adoption(
    house: House,
) -> None:
    accepted, _ = await house.talk("ask Which colour?")
    view = await house.question(accepted)
    await house.restart()
    await house.respond(view, option_id="reply", content={"text": "blue"})
    assert len(house.peer.messages) == 1
    assert f"return:{view['actionId']}" in await house.due(accepted.task_id)
    await house.adopt(accepted)
    await house.come_due("return", str(view["actionId"]), after_ms=0)
    await house.until(accepted, Status.COMPLETED)
    assert house.peer.texts == ["ask Which colour?", "blue"]


async def test_cancelled_request_cancels_the_task(house: House) -> None:
    accepted, _ = await house.talk("ask Which colour?")
    view = await house.question(accepted)
    await house.respond(view, option_id="cancel")
    await house.until(accepted, Status.CANCELLED)
    assert house.peer.count("CancelTask") == 1
    page = await house.service.read(ADA, ListTasks("echo", state="TASK_STATE_CANCELED"))
    assert page["totalSize"] == 1


@pytest.mark.requirement("EVC-10")
async def test_second_request_of_a_task_is_a_new_approval(house: House) -> None:
    house.peer.on("blue", ask)
    accepted, _ = await house.talk("ask Which colour?")
    first = await house.question(accepted)
    await house.respond(first, "dec_1", option_id="reply", content={"text": "blue Which shade?"})

    async def asks_again() -> bool:
        record = await house.record(accepted)
        return bool(record.open_actions) and record.open_actions[0] != first["actionId"]

    await wait_until(asks_again, 15, "the second request is open")
    second = await house.question(accepted)
    await house.respond(second, "dec_2", option_id="reply", content={"text": "dark"})
    await house.until(accepted, Status.COMPLETED)
    assert house.peer.texts[1:] == ["blue Which shade?", "dark"]


async def test_repeated_request_without_id_and_time_is_a_new_approval(house: House) -> None:
    async def ask_bare(turn: Turn) -> None:
        task = await turn.open()
        task.record["status"] = {
            "state": "TASK_STATE_INPUT_REQUIRED",
            "message": {"role": "ROLE_AGENT", "parts": [{"text": "Go on?"}]},
        }
        task.show()

    house.peer.next(ask_bare, ask_bare)
    accepted, _ = await house.talk("go")
    first = await house.question(accepted)
    answering = await house.send("yes", task=accepted.facade)
    await house.hear(answering)
    second = await house.question(accepted)
    assert second["actionId"] != first["actionId"]
    await house.send("yes", task=accepted.facade)
    await house.until(accepted, Status.COMPLETED)
    assert house.peer.texts == ["go", "yes", "yes"]
