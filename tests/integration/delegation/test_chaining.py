"""An agent's approval request reaches the gateway's caller in the gateway's form; only a typed part answers it."""

from __future__ import annotations

from typing import cast

import pytest

from passerelle.a2a_mapping.extensions import PERMISSION
from passerelle.a2a_mapping.members import object_at, objects_at, text_at
from passerelle.core.commands import GetAction
from passerelle.core.errors import ActionClosed, StaleAnswer
from passerelle.core.task.status import Status
from passerelle.core.wire.json import JsonObject
from tests.support.asking import ask_leave, read_answer
from tests.support.harness import ADA, Harness
from tests.support.scripted_tasks import Turn
from tests.support.waiting import wait_until

pytestmark = pytest.mark.anyio


def read_form(task: JsonObject) -> JsonObject:
    """The approval request in the status of a waiting Task: a text part for people, and a form for programs."""
    text, form = objects_at(object_at(object_at(task, "status"), "message"), "parts")
    assert "asks for permission" in text_at(text, "text")
    return object_at(object_at(form, "data"), PERMISSION)


def write_answer(harness: Harness, form: JsonObject, option: str, **more: str) -> JsonObject:
    """A caller's typed answer."""
    named = {name: form[name] for name in ("action_id", "rev", "digest")}
    answer: JsonObject = {**named, "decision_id": "dec_caller", "option_id": option, **more}
    return {**harness.message(""), "parts": [{"data": {PERMISSION: answer}}]}


async def test_change_to_authorization_required_keeps_the_open_approval(
    harness: Harness,
) -> None:
    async def ask_twice(turn: Turn) -> None:
        await ask_leave("first")(turn)
        await ask_leave("first", state="AUTH_REQUIRED")(turn)
        await ask_leave("first", state="AUTH_REQUIRED")(turn)

    harness.peer.next(ask_twice)
    accepted = await harness.send("go", wait="stream")
    await harness.until(accepted, Status.WAITING_PERMISSION)
    polls = harness.peer.count("GetTask")
    await wait_until(
        lambda: harness.peer.count("GetTask") > polls + 2, 10, "the agent was polled again"
    )
    task = await harness.read(accepted)
    assert text_at(object_at(task, "status"), "state") == "TASK_STATE_AUTH_REQUIRED"
    types = await harness.types(accepted)
    assert (types.count("action.required"), types.count("action.resolved")) == (1, 0)
    assert types.count("task.waiting") == 2
    await harness.respond(await harness.question(accepted), option_id="pay")
    await harness.until(accepted, Status.COMPLETED)


@pytest.mark.requirement("CMD-14", "VAL-4")
@pytest.mark.parametrize("option", ["pay", "leave"])
async def test_typed_answer_reaches_the_agent_in_the_agents_own_form(
    harness: Harness, option: str
) -> None:
    harness.peer.next(ask_leave())
    accepted, answer = await harness.talk("go")
    form = read_form(object_at(answer, "task"))
    assert "pay-1" not in {text_at(form, "action_id"), text_at(form, "digest")}
    message = write_answer(harness, form, option)
    second = await harness.send("", task=accepted.facade, message=message)
    done = object_at(await harness.await_answer(second), "task")
    assert text_at(object_at(done, "status"), "state") == "TASK_STATE_COMPLETED"
    sent = read_answer(harness.peer.messages[1])
    assert (sent["action_id"], sent["option_id"]) == ("pay-1", option)


async def test_authorization_is_requested_from_the_caller_and_not_granted_by_text(
    harness: Harness,
) -> None:
    harness.peer.next(ask_leave(state="AUTH_REQUIRED"))
    accepted = await harness.send("go", wait="stream")
    await harness.until(accepted, Status.WAITING_PERMISSION)
    task = await harness.read(accepted)
    assert text_at(object_at(task, "status"), "state") == "TASK_STATE_AUTH_REQUIRED"
    form = read_form(task)
    message = await harness.send("yes, go on", task=accepted.facade)
    waiting = object_at(await harness.await_answer(message), "task")
    assert text_at(object_at(waiting, "status"), "state") == "TASK_STATE_AUTH_REQUIRED"
    message = write_answer(harness, form, "pay")
    await harness.send("", task=accepted.facade, message=message)
    await harness.until(accepted, Status.COMPLETED)
    assert read_answer(harness.peer.messages[1])["option_id"] == "pay"


@pytest.mark.requirement("CMD-14")
async def test_late_and_stale_answers_of_a_caller_are_errors(harness: Harness) -> None:
    harness.peer.next(ask_leave())
    accepted, answer = await harness.talk("go")
    form = read_form(object_at(answer, "task"))
    wrong = write_answer(harness, {**form, "digest": "sha256:00"}, "pay")
    with pytest.raises(StaleAnswer):
        await harness.send("", task=accepted.facade, message=wrong)
    view = await harness.service.read(ADA, GetAction(text_at(form, "action_id")))
    harness.peer.hold()
    await harness.respond(view, option_id="leave")
    late = write_answer(harness, form, "pay")
    with pytest.raises(ActionClosed) as refused:
        await harness.send("", task=accepted.facade, message=late)
    assert refused.value.winner["optionId"] == "leave"
    harness.peer.release_all()
    await harness.until(accepted, Status.COMPLETED)
    assert read_answer(harness.peer.messages[1])["option_id"] == "leave"
    assert len(cast("list[object]", harness.peer.messages)) == 2
