"""Answers and further messages to an agent: how they are sent, also by a driver that resumes the run."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Final, cast

import orjson
import pytest

from passerelle.a2a_mapping.extensions import PERMISSION
from passerelle.a2a_mapping.members import object_at, objects_at, text_at
from passerelle.cli.verbs.task_text import describe_reasons
from passerelle.core.commands import GetAction, TurnAccepted, WaitMode
from passerelle.core.errors import PeerRefused
from passerelle.core.read_models.explanation import Explanation, explain_task
from passerelle.core.task.status import Status
from passerelle.core.wire.codec import to_wire
from passerelle.core.wire.json import Json, JsonObject
from passerelle.peers.config import PeerConfig
from tests.integration.delegation.test_native_answers import ask, call, confirm
from tests.support.asking import ask_leave
from tests.support.harness import ADA, QUICK, Harness
from tests.support.scripted_peer import ScriptedResponse
from tests.support.scripted_tasks import Turn, TurnScript
from tests.support.sdk_agent import run_sdk_agent
from tests.support.waiting import wait_until

pytestmark = pytest.mark.anyio


def stop_streaming(harness: Harness) -> None:
    """The agent's card declares no streaming, and the agent refuses streams."""
    capabilities = cast("JsonObject", harness.peer.card["capabilities"])
    harness.peer.card = {**harness.peer.card, "capabilities": {**capabilities, "streaming": False}}
    harness.peer.refuses = frozenset({"SendStreamingMessage", "SubscribeToTask"})


async def refuse(turn: Turn) -> None:
    await turn.refuse(-32602, "that is no answer")


@pytest.mark.requirement("DLV-1")
@pytest.mark.parametrize("streams", [True, False])
@pytest.mark.parametrize("wait", ["unary", "stream"])
async def test_answer_is_sent_with_the_same_method_by_the_next_driver(
    harness: Harness, wait: WaitMode, *, streams: bool
) -> None:
    """The answer is stored and the process ends before sending it: the caller's wait mode is a fact."""
    if not streams:
        stop_streaming(harness)
    accepted, _ = await harness.talk("ask Which colour?")
    await harness.restart()
    await harness.send("blue", task=accepted.facade, wait=wait)
    assert len(harness.peer.messages) == 1
    await harness.restart()
    await harness.adopt(accepted)
    await harness.until(accepted, Status.COMPLETED)
    way = "SendStreamingMessage" if streams and wait == "stream" else "SendMessage"
    sent = [one.method for one in harness.peer.requests if one.method.startswith("Send")]
    assert sent[1:] == [way]
    assert harness.peer.texts == ["ask Which colour?", "blue"]


@pytest.mark.requirement("DLV-2")
@pytest.mark.parametrize("streams", [True, False])
async def test_refusal_is_returned_again_after_a_restart(
    harness: Harness, *, streams: bool
) -> None:
    """A repeat with the same key gets the same error, and nothing is sent again."""
    if not streams:
        stop_streaming(harness)
    accepted, _ = await harness.talk("ask Which colour?")
    harness.peer.next(refuse)
    message: JsonObject = {"messageId": "m-2", "role": "ROLE_USER", "parts": [{"text": "blue"}]}
    answer = await harness.send("", task=accepted.facade, idem="key-1", message=message)
    with pytest.raises(PeerRefused, match="that is no answer"):
        await harness.await_answer(answer)
    first = await harness.record(accepted)
    await harness.restart()
    again = await harness.send("", task=accepted.facade, idem="key-1", message=message)
    assert (again.turn_id, again.repeated) == (answer.turn_id, True)
    with pytest.raises(PeerRefused, match="that is no answer") as repeated:
        await harness.await_answer(again)
    assert repeated.value.native_code == -32602
    assert harness.peer.texts == ["ask Which colour?", "blue"]
    assert (first.status, len(first.open_actions)) == (Status.WAITING_INPUT, 1)
    await harness.adopt(accepted)
    await harness.respond(
        await harness.question(accepted), option_id="reply", content={"text": "red"}
    )
    await harness.until(accepted, Status.COMPLETED)
    assert harness.peer.texts == ["ask Which colour?", "blue", "red"]


@pytest.mark.requirement("DLV-2")
async def test_refused_answer_of_a_device_reopens_the_request_as_a_new_approval(
    harness: Harness,
) -> None:
    """No A2A caller waits: the approval itself records the result of the answer."""
    stop_streaming(harness)
    accepted, _ = await harness.talk("ask Which colour?")
    view = await harness.question(accepted)
    harness.peer.next(refuse)
    await harness.respond(view, option_id="reply", content={"text": "blue"})

    async def is_open_again() -> bool:
        record = await harness.record(accepted)
        return record.status is Status.WAITING_INPUT and view["actionId"] not in record.open_actions

    await wait_until(is_open_again, 15, "the request is open again")
    closed = await harness.service.read(ADA, GetAction(str(view["actionId"])))
    assert closed["returnState"] == "undeliverable"
    assert closed["returnError"] == "peer_refused: that is no answer"
    types = await harness.types(accepted)
    assert types.count("model.requested") == types.count("model.completed") + types.count(
        "model.failed"
    )


@pytest.mark.requirement("DLV-2")
async def test_agent_unreachable_after_its_refusal_does_not_delay_the_caller(
    harness: Harness,
) -> None:
    async def refuse_and_go(turn: Turn) -> None:
        harness.peer.refuses = frozenset({"GetTask"})
        await turn.refuse(-32602, "that is no answer")

    accepted, _ = await harness.talk("ask Which colour?")
    harness.peer.next(refuse_and_go)
    answer = await harness.send("blue", task=accepted.facade)
    with pytest.raises(PeerRefused, match="that is no answer"):
        await harness.await_answer(answer)
    harness.peer.refuses = frozenset()
    await harness.until(accepted, Status.WAITING_INPUT)
    assert len((await harness.record(accepted)).open_actions) == 1


def write_allow(question: JsonObject) -> JsonObject:
    """An answer in the gateway's own form."""
    form: JsonObject = {
        "action_id": question["actionId"],
        "rev": question["rev"],
        "digest": question["digest"],
        "decision_id": "dec_1",
        "option_id": "pay",
    }
    return {"data": {PERMISSION: form}}


@pytest.mark.requirement("DLV-2", "CMD-14")
@pytest.mark.parametrize("form", ["words", "own", "native", "device"])
async def test_refused_answer_is_an_error_only_for_its_own_caller(
    harness: Harness, form: str
) -> None:
    """Two concurrent messages: the later one overtakes the answer, and the agent no longer waits for an answer."""
    stop_streaming(harness)
    harness.peer.next({"words": ask_in_words, "native": ask(call("adk-1"))}.get(form, ask_leave()))
    accepted, _ = await harness.talk("pay the bill")
    asked = await harness.question(accepted)
    parts: dict[str, JsonObject] = {
        "words": {"text": "blue"},
        "own": write_allow(asked),
        "native": confirm("adk-1"),
    }
    refused, done = asyncio.Event(), asyncio.Event()
    error = {"code": -32004, "message": "the task goes on"}
    body = orjson.dumps({"jsonrpc": "2.0", "id": None, "error": error})

    async def work(turn: Turn) -> None:
        await turn.status("WORKING")
        await done.wait()
        await turn.status("COMPLETED")

    harness.peer.answer_sends(ScriptedResponse(body=body, after=refused))
    harness.peer.next(work)
    answer: TurnAccepted | None = None
    if form == "device":
        await harness.respond(asked, option_id="pay")
    else:
        confirmation: JsonObject = {
            **harness.message(""),
            "parts": [parts[form]],
            "taskId": accepted.facade,
        }
        answer = await harness.send("", task=accepted.facade, message=confirmation)
    await wait_until(lambda: len(harness.peer.messages) == 2, 10, "the agent has the answer")
    other = await harness.send("green", task=accepted.facade)
    await wait_until(lambda: len(harness.peer.messages) == 3, 10, "the agent has both")
    refused.set()
    if answer is None:
        await wait_until(lambda: is_refused(harness, asked), 10, "the approval records it")
    else:
        with pytest.raises(PeerRefused, match="the task goes on"):
            await harness.await_answer(answer)
    done.set()
    task = cast("JsonObject", (await harness.await_answer(other))["task"])
    assert cast("JsonObject", task["status"])["state"] == "TASK_STATE_COMPLETED"


async def is_refused(harness: Harness, question: JsonObject) -> bool:
    closed = await harness.service.read(ADA, GetAction(str(question["actionId"])))
    return closed.get("returnError") == "peer_refused: the task goes on"


async def ask_in_words(turn: Turn) -> None:
    await turn.status("INPUT_REQUIRED", "Which colour?")


KINDS: Final = ("JSONRPC/1.0", "HTTP+JSON/1.0", "JSONRPC/0.3", "HTTP+JSON/0.3")


@pytest.mark.requirement("DLV-1", "DLV-3")
@pytest.mark.parametrize("streams", [True, False])
@pytest.mark.parametrize("wait", ["unary", "stream"])
@pytest.mark.parametrize("kind", KINDS)
async def test_sdk_agents_accept_answers_and_their_exceptions_fail_the_task(
    harness: Harness, kind: str, wait: WaitMode, *, streams: bool
) -> None:
    """They refuse every stream if their card declares none, and publish their Task only when it is new."""
    async with run_sdk_agent(kind, streams=streams) as agent:
        harness.registry.replace([PeerConfig("sdk", agent.url)])
        asked, _ = await harness.talk("ask Which colour?", agent="sdk")
        answer = await harness.send("blue", agent="sdk", task=asked.facade, wait=wait)
        shown = cast("JsonObject", (await harness.await_answer(answer))["task"])
        assert cast("JsonObject", shown["status"])["state"] == "TASK_STATE_COMPLETED"

        asked, _ = await harness.talk("ask Which size?", agent="sdk")
        answer = await harness.send("boom", agent="sdk", task=asked.facade, wait=wait)
        record = await harness.until(asked, Status.FAILED)
        assert record.last_error is not None
        if wait == "unary":
            with pytest.raises(PeerRefused):
                await harness.await_answer(answer)
        await harness.parts.dispatch.drain()


@pytest.mark.requirement("DLV-5")
async def test_broken_stream_is_reported_by_the_next_driver(harness: Harness) -> None:
    async def work_and_break(turn: Turn) -> None:
        await turn.status("WORKING")
        await turn.drop()

    harness.peer.subscribes = False
    harness.timeouts = replace(QUICK, stalled_s=30.0)
    await harness.restart()
    harness.peer.next(work_and_break)
    accepted = await harness.send("work", wait="stream")

    async def is_broken() -> bool:
        record = await harness.record(accepted)
        return bool(record.attempts and record.attempts[-1].broken_at)

    await wait_until(is_broken, 15, "the break is stored")
    harness.timeouts = replace(QUICK, stalled_s=0.2)
    await harness.restart()
    await harness.adopt(accepted)
    shown = cast("JsonObject", (await harness.await_answer(accepted))["task"])
    status = cast("JsonObject", shown["status"])
    assert status["state"] == "TASK_STATE_WORKING"
    assert "has not changed" in str(status["message"])
    record = await harness.record(accepted)
    assert (record.status, record.attempts[-1].stalled_at is not None) == (Status.RUNNING, True)
    (remote,) = harness.peer.tasks.values()
    remote.status("COMPLETED")
    record = await harness.until(accepted, Status.COMPLETED)
    assert record.attempts[-1].stalled_at is None


async def explain(harness: Harness, accepted: TurnAccepted) -> Explanation:
    events = [one for one in await harness.events(accepted) if one.fact.scope.task_id]
    return explain_task(await harness.record(accepted), events, harness.clock.now_ms())


@pytest.mark.requirement("DLV-2", "VAL-8")
async def test_explanation_of_a_refused_answer_contains_the_agents_message(
    harness: Harness,
) -> None:
    accepted, _ = await harness.talk("ask Which colour?")
    assert (await explain(harness, accepted)).messages == ()
    harness.peer.next(refuse)
    answer = await harness.send("blue", task=accepted.facade)
    with pytest.raises(PeerRefused):
        await harness.await_answer(answer)
    found = await explain(harness, accepted)
    (reason,) = found.messages
    assert any(reason.text in line for line in describe_reasons(to_wire(found)))
    assert (reason.code, reason.fact.type) == ("refused", "run.status")
    assert reason.text == (
        "agent 'echo' refused a message (code -32602): that is no answer; "
        "the task continues without it, and its open request can be answered again"
    )


@pytest.mark.requirement("DLV-3", "VAL-8")
async def test_explanation_of_an_internal_error_contains_the_agents_message(
    harness: Harness,
) -> None:
    async def fail_while_working(turn: Turn) -> None:
        await turn.status("WORKING")
        await turn.refuse(-32603, "boom")

    harness.peer.next(fail_while_working)
    accepted = await harness.send("work", wait="stream")
    await harness.until(accepted, Status.FAILED)
    expected = (
        "agent 'echo' failed with an internal error (code -32603): boom; its own log has the cause, "
        "and the task can be retried"
    )
    found = await explain(harness, accepted)
    assert [reason.text for reason in found.end] == [expected]
    assert found.retries[-1].text == f"the run ended as failed: {expected}"


@pytest.mark.requirement("DLV-3")
@pytest.mark.parametrize("streams", [True, False])
@pytest.mark.parametrize("wait", ["unary", "stream"])
@pytest.mark.parametrize("kind", KINDS)
async def test_sdk_agent_that_raises_on_the_first_message_fails_the_task(
    harness: Harness, kind: str, wait: WaitMode, *, streams: bool
) -> None:
    async with run_sdk_agent(kind, streams=streams) as agent:
        harness.registry.replace([PeerConfig("sdk", agent.url)])
        accepted = await harness.send("boom", agent="sdk", wait=wait)
        record = await harness.until(accepted, Status.FAILED)
        assert record.last_error is not None
        assert "not A2A" not in record.last_error.message
        await harness.parts.dispatch.drain()


@pytest.mark.requirement("ANS-8", "VAL-8")
async def test_message_kept_for_an_approval_is_reported_to_its_sender_and_explained(
    harness: Harness,
) -> None:
    harness.peer.next(ask_leave())
    accepted, _ = await harness.talk("pay the bill")
    view = await harness.question(accepted)
    action_id, title = str(view["actionId"]), str(view["title"])
    sent = len(harness.peer.messages)
    kept = await harness.send("yes", task=accepted.facade)
    task = cast("JsonObject", (await harness.await_answer(kept))["task"])
    sentence = (
        f"This message was kept and not sent to the agent: approval {action_id} ({title}) "
        "waits for its owner to decide"
    )
    assert sentence in str(cast("JsonObject", task["status"])["message"])
    assert f"/v1/approvals/{action_id}" in str(task["status"])
    (reason,) = (await explain(harness, accepted)).messages
    assert (reason.code, reason.text, reason.fact.type) == ("kept", sentence, "turn.submitted")
    assert len(harness.peer.messages) == sent


def ignore_message(*, keeps: bool) -> TurnScript:
    """The agent does nothing with the message; ``keeps``: its status still shows the request.

    The Python SDK 0.3 moves the request into the history with any message, and shows none until there is a new one.
    """

    async def script(turn: Turn) -> None:
        assert turn.task is not None
        record = turn.task.record
        if not keeps:
            asked = cast("JsonObject", record["status"]).pop("message")
            cast("list[Json]", record.setdefault("history", [])).append(asked)

    return script


@pytest.mark.parametrize("keeps", [True, False])
@pytest.mark.parametrize("streams", [True, False])
@pytest.mark.requirement("DIA-3", "DIA-4", "LT-5")
async def test_request_is_reopened_if_the_agent_ignored_the_answer(
    harness: Harness, *, streams: bool, keeps: bool
) -> None:
    if not streams:
        stop_streaming(harness)
    harness.peer.next(ask(call("adk-1")))
    accepted, _ = await harness.talk("go")
    harness.peer.next(ignore_message(keeps=keeps))
    task = await _confirm(harness, accepted)
    assert _read_state(task) == "TASK_STATE_INPUT_REQUIRED"
    message = object_at(object_at(task, "status"), "message")
    assert call("adk-1") in objects_at(message, "parts")
    task = await _confirm(harness, accepted)
    assert _read_state(task) == "TASK_STATE_COMPLETED"
    assert [sent["parts"] for sent in harness.peer.messages[1:]] == [[confirm("adk-1")]] * 2


async def _confirm(harness: Harness, accepted: TurnAccepted) -> JsonObject:
    """Allows the request in the agent's form; returns the resulting Task."""
    message: JsonObject = {
        **harness.message(""),
        "parts": [confirm("adk-1")],
        "taskId": accepted.facade,
    }
    sent = await harness.send("", message=message, task=accepted.facade)
    return object_at(await harness.await_answer(sent), "task")


def _read_state(task: JsonObject) -> str:
    return text_at(object_at(task, "status"), "state")


@pytest.mark.requirement("DIA-4", "LT-5")
@pytest.mark.parametrize("streams", [True, False])
async def test_wait_without_a_message_after_work_is_a_new_request(
    harness: Harness, *, streams: bool
) -> None:
    """The answered request is the agent's last message in the history, and is not opened again."""
    if not streams:
        stop_streaming(harness)

    async def work_and_wait(turn: Turn) -> None:
        await turn.status("WORKING")
        await turn.status("INPUT_REQUIRED")

    harness.peer.next(ask(call("adk-1")))
    accepted, _ = await harness.talk("go")
    [first] = (await harness.record(accepted)).open_actions
    harness.peer.next(work_and_wait)
    task = await _confirm(harness, accepted)
    assert _read_state(task) == "TASK_STATE_INPUT_REQUIRED"
    [second] = (await harness.record(accepted)).open_actions
    assert second != first
    sent = await harness.send("blue", task=accepted.facade)
    task = object_at(await harness.await_answer(sent), "task")
    assert _read_state(task) == "TASK_STATE_COMPLETED"
    assert harness.peer.texts[-1] == "blue"
