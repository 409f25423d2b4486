"""Further messages of a conversation: sent in the form that the agent supports, and refusals are reported."""

from __future__ import annotations

import asyncio
from typing import Any, Final, cast

import orjson
import pytest

from passerelle.core.wire.json import JsonObject
from tests.integration.a2a.rig import Rig
from tests.support.scripted_peer import ScriptedResponse
from tests.support.scripted_tasks import Turn, TurnScript
from tests.support.waiting import wait_until

pytestmark = pytest.mark.anyio

_WITHIN_S: Final = 8.0
"""Far below the times after which the outcome of a message is looked up."""


def stop_streaming(rig: Rig) -> None:
    """The agent has no streaming: its card omits it, and it refuses streaming methods."""
    capabilities = cast("JsonObject", rig.peer.card["capabilities"])
    rig.peer.card = {**rig.peer.card, "capabilities": {**capabilities, "streaming": False}}
    rig.peer.refuses = frozenset({"SendStreamingMessage", "SubscribeToTask"})


async def refuse_it(turn: Turn) -> None:
    await turn.refuse(-32602, "that colour is not on the list")


async def raise_before(turn: Turn) -> None:
    await turn.refuse(-32603, "boom")


async def raise_at_work(turn: Turn) -> None:
    await turn.status("WORKING")
    await turn.refuse(-32603, "boom")


async def raise_and_fail(turn: Turn) -> None:
    """As an agent of the SDK since 1.3: it fails its task beside the error, without words and without a frame."""
    await turn.status("WORKING")
    task = await turn.open()
    task.record["status"] = {"state": "TASK_STATE_FAILED"}
    await turn.refuse(-32603, "boom")


def list_sends(rig: Rig) -> list[str]:
    return [one.method for one in rig.peer.requests if one.method.startswith("Send")]


async def answer_unary(rig: Rig, task: dict[str, Any], text: str = "blue") -> dict[str, Any]:
    async with asyncio.timeout(_WITHIN_S):
        response = await rig.post("SendMessage", rig.message(text, taskId=task["id"]))
    return cast("dict[str, Any]", response.json())


async def answer_stream(rig: Rig, task: dict[str, Any], text: str = "blue") -> list[Any]:
    """Returns the bodies of the events up to the end of the stream."""
    async with asyncio.timeout(_WITHIN_S):
        params = rig.message(text, taskId=task["id"])
        return [orjson.loads(one.data) for one in await rig.collect("SendStreamingMessage", params)]


async def show(rig: Rig, task: dict[str, Any]) -> dict[str, Any]:
    return await rig.call("GetTask", {"id": task["id"]})


# ---------------------------------------------------------------- in the agent's form


@pytest.mark.parametrize("streams", [True, False])
@pytest.mark.parametrize("caller", ["unary", "stream"])
@pytest.mark.requirement("DLV-1", "LT-5")
async def test_an_answer_is_sent_in_the_form_that_the_agent_supports(
    rig: Rig, caller: str, *, streams: bool
) -> None:
    if not streams:
        stop_streaming(rig)
    asked = await rig.send("ask which colour?")
    before = len(list_sends(rig))
    if caller == "unary":
        done = (await answer_unary(rig, asked))["result"]["task"]
        assert done["status"]["state"] == "TASK_STATE_COMPLETED"
    else:
        events = await answer_stream(rig, asked)
        last = events[-1]["result"]["statusUpdate"]
        assert last["status"]["state"] == "TASK_STATE_COMPLETED"
    (sent,) = list_sends(rig)[before:]
    wanted = "SendStreamingMessage" if streams and caller == "stream" else "SendMessage"
    assert sent == wanted
    assert rig.peer.texts == ["ask which colour?", "blue"]


@pytest.mark.requirement("DLV-1")
async def test_an_agent_without_streaming_gets_no_stream(rig: Rig) -> None:
    stop_streaming(rig)
    asked = await rig.send("ask which colour?")

    async def ask_again(turn: Turn) -> None:
        await turn.status("INPUT_REQUIRED", "and which size?")

    rig.peer.next(ask_again)
    again = (await answer_unary(rig, asked))["result"]["task"]
    assert again["status"]["message"]["parts"] == [{"text": "and which size?"}]
    done = (await answer_unary(rig, asked, "large"))["result"]["task"]
    assert done["status"]["state"] == "TASK_STATE_COMPLETED"
    assert "SendStreamingMessage" not in list_sends(rig)


@pytest.mark.requirement("DLV-1")
async def test_a_task_left_working_by_a_unary_answer_is_followed(rig: Rig) -> None:
    stop_streaming(rig)
    asked = await rig.send("ask which colour?")

    async def work_on(turn: Turn) -> None:
        await turn.status("WORKING")

    rig.peer.next(work_on)
    answering = asyncio.create_task(answer_unary(rig, asked))
    await wait_until(lambda: len(list_sends(rig)) == 2, _WITHIN_S, "the answer is sent")
    asked_for = rig.peer.count("GetTask")
    await wait_until(
        lambda: rig.peer.count("GetTask") >= asked_for + 2, _WITHIN_S, "the gateway looks again"
    )
    (task,) = rig.peer.tasks.values()
    task.status("COMPLETED")
    done = (await answering)["result"]["task"]
    assert done["status"]["state"] == "TASK_STATE_COMPLETED"


async def say_words(turn: Turn) -> None:
    await turn.answer("there is blue and red")


@pytest.mark.parametrize("streams", [True, False])
@pytest.mark.parametrize("caller", ["unary", "stream"])
@pytest.mark.requirement("DLV-1", "LT-9")
async def test_an_agent_that_replies_and_keeps_waiting_asks_the_same_question_again(
    rig: Rig, caller: str, *, streams: bool
) -> None:
    """The agent replies with a bare Message and keeps waiting; so the gateway's task takes another answer."""
    if not streams:
        stop_streaming(rig)
    asked = await rig.send("ask which colour?")
    rig.peer.next(say_words)
    if caller == "unary":
        again = (await answer_unary(rig, asked, "which are there?"))["result"]["task"]
    else:
        events = [one["result"] for one in await answer_stream(rig, asked, "which are there?")]
        refusal = [one["statusUpdate"] for one in events if "statusUpdate" in one]
        words = [one["status"]["message"]["parts"] for one in refusal if "message" in one["status"]]
        assert words == [[{"text": "there is blue and red"}], [{"text": "which colour?"}]]
        again = refusal[-1]
    assert again["status"] == asked["status"]
    task = await show(rig, asked)
    assert task["status"] == asked["status"]
    said = [message["parts"][0]["text"] for message in task["history"]]
    assert said == [
        "ask which colour?",
        "which colour?",
        "which are there?",
        "there is blue and red",
    ]
    done = (await answer_unary(rig, asked))["result"]["task"]
    assert done["status"]["state"] == "TASK_STATE_COMPLETED"
    assert rig.peer.texts == ["ask which colour?", "which are there?", "blue"]


async def show_the_same(turn: Turn) -> None:
    """Sends the task as it is: the agent has the message and waits for another one."""
    assert turn.task is not None
    turn.task.show()


async def work_and_show_the_same(turn: Turn) -> None:
    assert turn.task is not None
    status = turn.task.record["status"]
    await turn.status("WORKING", "I am thinking")
    turn.task.record["status"] = status
    turn.task.show()


async def say_nothing(turn: Turn) -> None:
    """The agent sends nothing in reply."""


async def make_something(turn: Turn) -> None:
    await turn.artifact("a first sketch")


@pytest.mark.parametrize("script", [show_the_same, work_and_show_the_same, make_something])
@pytest.mark.parametrize("streams", [True, False])
@pytest.mark.parametrize("caller", ["unary", "stream"])
@pytest.mark.requirement("DLV-1", "LT-5")
async def test_an_agent_that_handles_an_answer_and_keeps_waiting_asks_again(
    rig: Rig, caller: str, script: TurnScript, *, streams: bool
) -> None:
    if not streams:
        stop_streaming(rig)
    asked = await rig.send("ask which colour?")
    rig.peer.next(script)
    if caller == "unary":
        status = (await answer_unary(rig, asked, "none"))["result"]["task"]["status"]
    else:
        last = (await answer_stream(rig, asked, "none"))[-1]["result"]
        status = last["statusUpdate"]["status"]
    assert status == asked["status"]
    assert (await show(rig, asked))["status"] == asked["status"]
    done = (await answer_unary(rig, asked))["result"]["task"]
    assert done["status"]["state"] == "TASK_STATE_COMPLETED"
    assert rig.peer.texts == ["ask which colour?", "none", "blue"]


@pytest.mark.parametrize("streams", [True, False])
@pytest.mark.parametrize("keeps_history", [True, False])
@pytest.mark.parametrize("caller", ["unary", "stream"])
@pytest.mark.requirement("DLV-1", "LT-5")
async def test_an_agent_that_sends_nothing_and_keeps_waiting_asks_again(
    rig: Rig, caller: str, *, keeps_history: bool, streams: bool
) -> None:
    """Its stream ends without an event, whether or not its task has the message."""
    rig.peer.keeps_history = keeps_history
    if not streams:
        stop_streaming(rig)
    asked = await rig.send("ask which colour?")
    rig.peer.next(say_nothing)
    if caller == "unary":
        status = (await answer_unary(rig, asked, "none"))["result"]["task"]["status"]
    else:
        status = (await answer_stream(rig, asked, "none"))[-1]["result"]["statusUpdate"]["status"]
    assert status == asked["status"]
    done = (await answer_unary(rig, asked))["result"]["task"]
    assert done["status"]["state"] == "TASK_STATE_COMPLETED"
    assert rig.peer.texts == ["ask which colour?", "none", "blue"]


@pytest.mark.requirement("LT-9")
async def test_a_credential_request_is_still_open_after_the_agents_reply(
    rig: Rig,
) -> None:
    asked = await rig.send("auth sign in")
    assert asked["status"]["state"] == "TASK_STATE_AUTH_REQUIRED"
    rig.peer.next(say_words)
    again = (await answer_unary(rig, asked, "token-1"))["result"]["task"]
    assert again["status"] == asked["status"]
    assert "there is blue and red" in str(again["history"])
    done = (await answer_unary(rig, asked, "token-2"))["result"]["task"]
    assert done["status"]["state"] == "TASK_STATE_COMPLETED"
    assert rig.peer.texts == ["auth sign in", "token-1", "token-2"]


@pytest.mark.requirement("LT-9")
async def test_a_message_of_a_working_agent_is_a_status_message(rig: Rig) -> None:
    asked = await rig.send("ask which colour?")

    async def say_and_go_on(turn: Turn) -> None:
        await turn.answer("blue it is")
        await turn.status("WORKING")
        await turn.status("COMPLETED")

    rig.peer.next(say_and_go_on)
    events = [one["result"] for one in await answer_stream(rig, asked)]
    refusal = [one["statusUpdate"]["status"] for one in events if "statusUpdate" in one]
    assert [one["state"] for one in refusal][-1] == "TASK_STATE_COMPLETED"
    assert "TASK_STATE_INPUT_REQUIRED" not in {one["state"] for one in refusal}
    assert "blue it is" in str(refusal)


# ---------------------------------------------------------------- refusals


REFUSALS: Final = {
    "params": (refuse_it, -32602, "that colour is not on the list"),
    "internal": (raise_before, -32603, "boom"),
}


@pytest.mark.parametrize("streams", [True, False])
@pytest.mark.parametrize("name", sorted(REFUSALS))
@pytest.mark.parametrize("caller", ["unary", "stream"])
@pytest.mark.requirement("DLV-2")
async def test_a_refused_answer_is_reported_and_the_question_is_open_again(
    rig: Rig, caller: str, name: str, *, streams: bool
) -> None:
    if not streams:
        stop_streaming(rig)
    script, code, text = REFUSALS[name]
    asked = await rig.send("ask which colour?")
    rig.peer.next(script)
    if caller == "unary":
        error = (await answer_unary(rig, asked))["error"]
    else:
        error = (await answer_stream(rig, asked))[-1]["error"]
    assert (error["code"], error["message"]) == (code, text)
    assert error["data"][0]["metadata"]["native_code"] == str(code)
    # The same question is open and takes another answer.
    waiting = await show(rig, asked)
    assert waiting["status"]["state"] == "TASK_STATE_INPUT_REQUIRED"
    assert waiting["status"]["message"]["parts"] == [{"text": "which colour?"}]
    done = (await answer_unary(rig, asked, "red"))["result"]["task"]
    assert done["status"]["state"] == "TASK_STATE_COMPLETED"
    assert rig.peer.texts == ["ask which colour?", "blue", "red"]


HTTP: Final = {
    400: "agent 'echo' refused the call with HTTP 400",
    401: "agent 'echo' did not accept the credential of the gateway (HTTP 401)",
    403: "agent 'echo' does not allow the call (HTTP 403)",
    500: "agent 'echo' failed with HTTP 500",
    503: "agent 'echo' is not available",
}


@pytest.mark.parametrize("status", sorted(HTTP))
@pytest.mark.parametrize("opens", [True, False])
@pytest.mark.requirement("DLV-2", "DLV-4")
async def test_a_refusal_over_http_is_reported_with_its_status(
    rig: Rig, status: int, *, opens: bool
) -> None:
    page = ScriptedResponse(
        status, b"<html><body>sorry</body></html>", {"Content-Type": "text/html"}
    )
    if opens:
        await rig.send("hello")
        rig.peer.answer_sends(page)
        async with asyncio.timeout(_WITHIN_S):
            error = (await rig.post("SendMessage", rig.message("hello"))).json()["error"]
    else:
        asked = await rig.send("ask which colour?")
        rig.peer.answer_sends(page)
        error = (await answer_unary(rig, asked))["error"]
        assert (await show(rig, asked))["status"]["state"] == "TASK_STATE_INPUT_REQUIRED"
    assert error["message"] == HTTP[status]
    if status != 503:
        assert error["data"][0]["metadata"]["http_status"] == str(status)
    assert rig.counted() == 2


@pytest.mark.requirement("DLV-2", "DLV-4")
async def test_an_agents_own_error_keeps_its_code_and_details(rig: Rig) -> None:
    await rig.send("hello")
    details = [
        {
            "@type": "type.googleapis.com/google.rpc.ErrorInfo",
            "reason": "NO_MORE_CREDIT",
            "domain": "agent.example",
            "metadata": {"plan": "free"},
        },
        {
            "@type": "type.googleapis.com/google.rpc.BadRequest",
            "fieldViolations": [{"field": "message.parts", "description": "one part too many"}],
        },
    ]
    error = {"code": -32050, "message": "no more credit for org-4f9a2c", "data": details}

    async def refuse_with(opens: dict[str, Any] | None) -> dict[str, Any]:
        # The id of the JSON-RPC call is unknown here; an error may omit it.
        body = orjson.dumps({"jsonrpc": "2.0", "id": None, "error": error})
        rig.peer.answer_sends(ScriptedResponse(200, body, {"Content-Type": "application/json"}))
        members = {"taskId": opens["id"]} if opens else {}
        async with asyncio.timeout(_WITHIN_S):
            return cast(
                "dict[str, Any]",
                (await rig.post("SendMessage", rig.message("hello", **members))).json()["error"],
            )

    for opens in (None, await rig.send("ask which colour?")):
        refusal = await refuse_with(opens)
        assert (refusal["code"], refusal["message"]) == (-32050, "no more credit for …")
        assert refusal["data"][1:] == details


@pytest.mark.requirement("DLV-4")
async def test_an_agent_that_raises_at_once_is_not_reported_as_not_a2a(rig: Rig) -> None:
    rig.peer.next(raise_before)
    error = await rig.refuse("SendMessage", rig.message("hello"))
    assert (error["code"], error["message"]) == (-32603, "boom")


@pytest.mark.requirement("DLV-4")
async def test_a_response_that_is_not_a2a_is_reported_as_such(rig: Rig) -> None:
    await rig.send("hello")
    rig.peer.answer_sends(ScriptedResponse(200, b"<html></html>", {"Content-Type": "text/html"}))
    error = await rig.refuse("SendMessage", rig.message("hello"))
    assert error["code"] == -32006
    assert "not A2A" in error["message"]


@pytest.mark.parametrize("caller", ["unary", "stream"])
@pytest.mark.requirement("DLV-2")
async def test_a_refused_further_message_is_reported_and_the_task_continues(
    rig: Rig, caller: str
) -> None:
    rig.peer.hold()
    opening = asyncio.create_task(rig.collect("SendStreamingMessage", rig.message("chunks 2")))
    rig.peer.release(1)
    await wait_until(lambda: bool(rig.peer.tasks), _WITHIN_S, "the agent has a task")

    async def shown() -> dict[str, Any] | None:
        tasks = (await rig.call("ListTasks", {}))["tasks"]
        return tasks[0] if tasks else None

    task = await wait_until(shown, _WITHIN_S, "callers see the task")
    assert task is not None
    page = ScriptedResponse(422, b"", {})
    rig.peer.answer_sends(page)
    if caller == "unary":
        error = (await answer_unary(rig, task, "faster"))["error"]
    else:
        error = (await answer_stream(rig, task, "faster"))[-1]["error"]
    assert error["message"] == "agent 'echo' refused the call with HTTP 422"
    rig.peer.release_all()
    events = await opening
    assert events[-1].result["statusUpdate"]["status"]["state"] == "TASK_STATE_COMPLETED"


@pytest.mark.parametrize("streams", [True, False])
@pytest.mark.parametrize("caller", ["unary", "stream"])
@pytest.mark.parametrize("fails", [True, False])
@pytest.mark.requirement("DLV-3")
async def test_an_agent_that_raises_while_working_fails_its_run(
    rig: Rig, caller: str, *, streams: bool, fails: bool
) -> None:
    """Its task stays WORKING, as with the SDK of 0.3, or is FAILED without words, as with that of 1.0."""
    if not streams:
        stop_streaming(rig)
    asked = await rig.send("ask which colour?")
    rig.peer.next(raise_and_fail if fails else raise_at_work)
    if caller == "unary":
        error = (await answer_unary(rig, asked))["error"]
    else:
        error = (await answer_stream(rig, asked))[-1]["error"]
    assert (error["code"], error["message"]) == (-32603, "boom")
    failed = await show(rig, asked)
    assert failed["status"]["state"] == "TASK_STATE_FAILED"
    assert failed["status"]["message"]["parts"] == [{"text": "boom"}]


# ---------------------------------------------------------------- refusals by an agent whose task is WORKING


async def refuse_at_work(turn: Turn) -> None:
    await turn.status("WORKING")
    await turn.refuse(-32602, "that colour is not on the list")


async def ask_for_consent(turn: Turn) -> None:
    await turn.status("INPUT_REQUIRED", parts=[ADK_ASKS])


ADK_ASKS: Final[JsonObject] = {
    "data": {
        "id": "adk-call-1",
        "name": "adk_request_confirmation",
        "args": {
            "originalFunctionCall": {"id": "call-1", "name": "pay", "args": {"amount": 42}},
            "toolConfirmation": {"hint": "Pay 42?", "confirmed": False},
        },
    },
    "metadata": {"adk_type": "function_call", "adk_is_long_running": True},
}
ADK_SAYS: Final[JsonObject] = {
    "data": {
        "id": "adk-call-1",
        "name": "adk_request_confirmation",
        "response": {"confirmed": True},
    },
    "metadata": {"adk_type": "function_response"},
}


async def answer_with(rig: Rig, task: dict[str, Any], part: JsonObject, caller: str) -> Any:  # noqa: ANN401  the last body
    params = rig.message("", taskId=task["id"])
    params["message"] = {**cast("JsonObject", params["message"]), "parts": [part]}
    async with asyncio.timeout(_WITHIN_S):
        if caller == "stream":
            events = await rig.collect("SendStreamingMessage", params)
            return orjson.loads(events[-1].data)
        return (await rig.post("SendMessage", params)).json()


@pytest.mark.parametrize("form", ["words", "dialect"])
@pytest.mark.parametrize("streams", [True, False])
@pytest.mark.parametrize("caller", ["unary", "stream"])
@pytest.mark.requirement("DLV-2", "DLV-3")
async def test_a_task_waits_again_when_its_agent_starts_work_and_then_refuses(
    rig: Rig, caller: str, form: str, *, streams: bool
) -> None:
    """Like an SDK agent of 0.3: its task reports WORKING, yet it accepts the next answer."""
    if not streams:
        stop_streaming(rig)
    if form == "dialect":
        rig.peer.next(ask_for_consent)
    asked = await rig.send("ask which colour?")
    part: JsonObject = {"text": "blue"} if form == "words" else ADK_SAYS
    rig.peer.next(refuse_at_work)
    error = (await answer_with(rig, asked, part, caller))["error"]
    assert (error["code"], error["message"]) == (-32602, "that colour is not on the list")
    waiting = await show(rig, asked)
    assert waiting["status"]["state"] == "TASK_STATE_INPUT_REQUIRED"
    said = waiting["status"]["message"]["parts"]
    assert said == [{"text": "which colour?"}] if form == "words" else ADK_ASKS in said
    # A repeated WORKING changes nothing.
    looked = rig.peer.count("GetTask")
    await wait_until(lambda: rig.peer.count("GetTask") > looked, _WITHIN_S, "the gateway looks")
    assert (await show(rig, asked))["status"]["state"] == "TASK_STATE_INPUT_REQUIRED"

    async def take_it(turn: Turn) -> None:
        await turn.status("COMPLETED")

    rig.peer.next(take_it)
    done = (await answer_with(rig, asked, part, "unary"))["result"]["task"]
    assert done["status"]["state"] == "TASK_STATE_COMPLETED"


@pytest.mark.parametrize("code", [-32602, -32603, -32004])
@pytest.mark.parametrize("streams", [True, False])
@pytest.mark.parametrize("caller", ["unary", "stream"])
@pytest.mark.requirement("DLV-2", "DLV-3", "DIA-4")
async def test_refused_typed_answer_opens_the_request_again_that_the_agent_moved_into_history(
    rig: Rig, caller: str, code: int, *, streams: bool
) -> None:
    """As an agent of the SDK for 0.3 that raises before its first event: it moves the request with any message."""
    if not streams:
        stop_streaming(rig)

    async def move_and_refuse(turn: Turn) -> None:
        task = await turn.open()
        task.remember(cast("JsonObject", cast("JsonObject", task.record["status"]).pop("message")))
        await turn.refuse(code, "not now")

    async def complete(turn: Turn) -> None:
        await turn.status("COMPLETED")

    rig.peer.next(ask_for_consent)
    asked = await rig.send("ask which colour?")
    rig.peer.next(move_and_refuse)
    error = (await answer_with(rig, asked, ADK_SAYS, caller))["error"]
    assert (error["code"], error["message"]) == (code, "not now")
    waiting = await show(rig, asked)
    assert waiting["status"]["state"] == "TASK_STATE_INPUT_REQUIRED"
    assert ADK_ASKS in waiting["status"]["message"]["parts"]
    rig.peer.next(complete)
    done = (await answer_with(rig, asked, ADK_SAYS, "unary"))["result"]["task"]
    assert done["status"]["state"] == "TASK_STATE_COMPLETED"


@pytest.mark.requirement("DLV-2", "DLV-3")
async def test_an_agent_that_continues_after_a_refusal_is_followed(rig: Rig) -> None:
    stop_streaming(rig)
    asked = await rig.send("ask which colour?")
    rig.peer.next(refuse_at_work)
    assert "error" in await answer_unary(rig, asked)
    assert (await show(rig, asked))["status"]["state"] == "TASK_STATE_INPUT_REQUIRED"
    (task,) = rig.peer.tasks.values()
    task.status("WORKING", "found one")

    async def works() -> bool:
        return bool((await show(rig, asked))["status"]["state"] == "TASK_STATE_WORKING")

    await wait_until(works, _WITHIN_S, "callers see that it works")
    task.status("COMPLETED")

    async def is_done() -> bool:
        return bool((await show(rig, asked))["status"]["state"] == "TASK_STATE_COMPLETED")

    await wait_until(is_done, _WITHIN_S, "callers see the end")


@pytest.mark.parametrize("late", [True, False])
@pytest.mark.requirement("DLV-2")
async def test_a_caller_that_did_not_wait_for_a_refused_answer_reads_that_the_task_waits_again(
    rig: Rig, *, late: bool
) -> None:
    stop_streaming(rig)
    asked = await rig.send("ask which colour?")
    rig.peer.hold()
    rig.peer.next(raise_before)
    params = rig.message("blue", taskId=asked["id"])
    params["configuration"] = {"returnImmediately": True}
    taken = await rig.call("SendMessage", params)
    assert taken["task"]["status"]["state"] == "TASK_STATE_WORKING"
    if late:
        rig.peer.release_all()

        async def waits() -> bool:
            return bool((await show(rig, asked))["status"]["state"] == "TASK_STATE_INPUT_REQUIRED")

        await wait_until(waits, _WITHIN_S, "the task waits again")
    shown: dict[str, Any] = {}
    async with asyncio.timeout(_WITHIN_S):
        async with rig.stream("SubscribeToTask", {"id": asked["id"]}) as events:
            async for event in events:
                rig.peer.release_all()
                shown = event.result.get("task") or event.result["statusUpdate"]
                if shown["status"]["state"] == "TASK_STATE_INPUT_REQUIRED":
                    break
    assert shown["status"]["message"]["parts"] == [{"text": "which colour?"}]
