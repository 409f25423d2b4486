"""Answers that are none, or lack an id: callers get the content, or read at once that there is none."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any, Final, cast

import orjson
import pytest

from passerelle.a2a_mapping.rpc import Method
from passerelle.core.wire.json import Json, JsonObject
from passerelle.delegation.runs.peer_profile import PeerTerms
from passerelle.peers.config import PeerConfig
from tests.integration.a2a.rig import PATIENCE, Rig
from tests.integration.a2a.speakers import Speaker
from tests.integration.a2a.test_bindings_agree import speakers
from tests.support.scripted_peer import ScriptedResponse
from tests.support.scripted_tasks import Turn, TurnScript

__all__ = ["speakers"]

pytestmark = pytest.mark.anyio

_WITHIN_S: Final = 5.0
_STREAMED: Final = {"Content-Type": "text/event-stream"}
_WORKING: Final[JsonObject] = {
    "id": "agents-own-task",
    "contextId": "agents-own-context",
    "status": {"state": "TASK_STATE_WORKING"},
}


async def say_nothing(turn: Turn) -> None:
    """The program of the agent returns, and the library ends the stream."""


async def say_garbage(turn: Turn) -> None:
    await turn.write(b"data: {this\n\n")


@pytest.mark.parametrize("answer", [say_nothing, say_garbage])
@pytest.mark.requirement("DLV-5")
async def test_an_answer_that_is_none_is_reported_at_once(
    rig: Rig, speakers: dict[str, Speaker], answer: TurnScript
) -> None:
    # The agent is known to list what it has: a message that had not arrived would be sent again.
    await rig.send("hello")
    for name, speaker in speakers.items():
        rig.peer.next(answer)
        async with asyncio.timeout(_WITHIN_S):
            refusal = await speaker.call(Method.SEND_STREAMING_MESSAGE, rig.message("go"))
        assert refusal == "INVALID_AGENT_RESPONSE", name
    assert rig.counted() == 1 + len(speakers), "nothing was sent twice"
    rig.peer.next(answer)
    error = await rig.refuse("SendStreamingMessage", rig.message("go"))
    assert error["message"] == "agent 'echo' answered with something that is not A2A"


@pytest.mark.parametrize("code", [-32603, -32602, -32001])
@pytest.mark.requirement("DLV-5")
async def test_an_answer_that_is_none_is_reported_at_once_by_an_agent_that_refuses_its_list(
    rig: Rig, code: int
) -> None:
    await rig.send("hello")
    error = {"jsonrpc": "2.0", "id": None, "error": {"code": code, "message": "not now"}}
    rig.peer.answer_next(
        ScriptedResponse(200, b"", _STREAMED),
        ScriptedResponse(200, orjson.dumps(error), {"Content-Type": "application/json"}),
    )
    async with asyncio.timeout(_WITHIN_S):
        refusal = await rig.refuse("SendStreamingMessage", rig.message("go"))
    assert refusal["message"] == "agent 'echo' answered with something that is not A2A"
    assert rig.peer.count("ListTasks") == 1


@pytest.mark.parametrize("number", [None, "7f", 12345])
async def test_events_belong_to_their_stream_whatever_their_id(rig: Rig, number: Json) -> None:
    done: JsonObject = {**_WORKING, "status": {"state": "TASK_STATE_COMPLETED"}}
    events: list[JsonObject] = [{"task": _WORKING}, {"task": done}]
    envelopes: list[dict[str, Any]] = [{"jsonrpc": "2.0", "result": one} for one in events]
    if number is not None:
        envelopes = [{**one, "id": number} for one in envelopes]
    body = b"".join(b"data: " + orjson.dumps(one) + b"\n\n" for one in envelopes)
    rig.peer.answer_sends(ScriptedResponse(200, body, _STREAMED))
    async with asyncio.timeout(_WITHIN_S):
        shown = await rig.collect("SendStreamingMessage", rig.message("go"))
    last = cast("dict[str, Any]", orjson.loads(shown[-1].data)["result"])
    assert last["statusUpdate"]["status"]["state"] == "TASK_STATE_COMPLETED"


async def test_an_answer_without_an_id_answers_its_request(rig: Rig) -> None:
    done = {**_WORKING, "status": {"state": "TASK_STATE_COMPLETED"}}
    body = orjson.dumps({"jsonrpc": "2.0", "result": {"task": done}})
    rig.peer.answer_sends(ScriptedResponse(200, body, {"Content-Type": "application/json"}))
    async with asyncio.timeout(_WITHIN_S):
        task = await rig.send("hello")
    assert task["status"]["state"] == "TASK_STATE_COMPLETED"


@pytest.mark.parametrize(
    "result",
    [{}, {"task": {"id": "agents-own-task"}}, {"message": {"role": "ROLE_AGENT"}}, {"other": 1}],
)
@pytest.mark.requirement("DLV-5")
async def test_a_result_that_is_none_is_reported_at_once(rig: Rig, result: JsonObject) -> None:
    await rig.send("hello")
    body = orjson.dumps({"jsonrpc": "2.0", "id": None, "result": result})
    rig.peer.answer_sends(ScriptedResponse(200, body, {"Content-Type": "application/json"}))
    async with asyncio.timeout(_WITHIN_S):
        error = await rig.refuse("SendMessage", rig.message("go"))
    assert error["code"] == -32006
    assert rig.counted() == 2, "nothing was sent twice"


@pytest.mark.parametrize("method", ["SendMessage", "SendStreamingMessage"])
async def test_a_message_without_an_id_is_an_answer(rig: Rig, method: str) -> None:
    result = {"message": {"role": "ROLE_AGENT", "parts": [{"text": "hi"}]}}
    body = orjson.dumps({"jsonrpc": "2.0", "id": None, "result": result})
    rig.peer.answer_sends(ScriptedResponse(200, body, {"Content-Type": "application/json"}))
    async with asyncio.timeout(_WITHIN_S):
        if method == "SendMessage":
            shown = await rig.call(method, rig.message("go"))
        else:
            (event,) = await rig.collect(method, rig.message("go"))
            shown = cast("dict[str, Any]", orjson.loads(event.data)["result"])
    assert shown["message"]["parts"] == [{"text": "hi"}]


async def test_updates_without_ids_are_those_of_the_task_of_their_stream(rig: Rig) -> None:
    events: list[JsonObject] = [
        {"task": _WORKING},
        {"artifactUpdate": {"artifact": {"artifactId": "a1", "parts": [{"text": "x"}]}}},
        {"statusUpdate": {"status": {"state": "TASK_STATE_COMPLETED"}}},
    ]
    envelopes = [{"jsonrpc": "2.0", "id": 1, "result": one} for one in events]
    body = b"".join(b"data: " + orjson.dumps(one) + b"\n\n" for one in envelopes)
    rig.peer.answer_sends(ScriptedResponse(200, body, _STREAMED))
    async with asyncio.timeout(_WITHIN_S):
        shown = await rig.collect("SendStreamingMessage", rig.message("go"))
    first, piece, last = (cast("dict[str, Any]", orjson.loads(one.data)["result"]) for one in shown)
    ids = {"taskId": first["task"]["id"], "contextId": first["task"]["contextId"]}
    assert piece["artifactUpdate"] == {
        **ids,
        "artifact": {"artifactId": "a1", "parts": [{"text": "x"}]},
    }
    assert last["statusUpdate"]["status"]["state"] == "TASK_STATE_COMPLETED"
    assert last["statusUpdate"]["taskId"] == ids["taskId"]


def _frame(result: JsonObject) -> bytes:
    return b"data: " + orjson.dumps({"jsonrpc": "2.0", "id": 1, "result": result}) + b"\n\n"


_NAMED: Final[JsonObject] = {"taskId": "agents-own-task", "contextId": "agents-own-context"}


@pytest.mark.parametrize(
    ("first", "state", "role"),
    [(2, 3, 2), ("working", "completed", "agent"), ("TASK_STATE_WORKING", 3, "ROLE_AGENT")],
)
@pytest.mark.requirement("ST-21")
async def test_states_and_roles_are_read_in_each_spelling_of_a2a(
    rig: Rig, first: Json, state: Json, role: Json
) -> None:
    said: JsonObject = {"messageId": "agents-words", "role": role, "parts": [{"text": "done"}]}
    done: JsonObject = {"status": {"state": state, "message": said}}
    begun: JsonObject = {**_WORKING, "status": {"state": first}}
    events: list[JsonObject] = [{"task": begun}, {"statusUpdate": {**_NAMED, **done}}]
    rig.peer.answer_sends(ScriptedResponse(200, b"".join(map(_frame, events)), _STREAMED))
    async with asyncio.timeout(_WITHIN_S):
        shown = await rig.collect("SendStreamingMessage", rig.message("go"))
    opening = shown[0].result["task"]["status"]["state"]
    assert opening in {"TASK_STATE_WORKING", "TASK_STATE_SUBMITTED"}
    ended = shown[-1].result["statusUpdate"]["status"]
    assert (ended["state"], ended["message"]["role"]) == ("TASK_STATE_COMPLETED", "ROLE_AGENT")
    body = orjson.dumps({"jsonrpc": "2.0", "result": {"task": {**_WORKING, **done}}})
    rig.peer.answer_sends(ScriptedResponse(200, body, {"Content-Type": "application/json"}))
    async with asyncio.timeout(_WITHIN_S):
        task = await rig.send("hello")
    assert task["status"]["state"] == "TASK_STATE_COMPLETED"
    assert [one["role"] for one in task["history"]] in (["ROLE_USER"], ["ROLE_USER", "ROLE_AGENT"])


_OLDER_STATES: Final = ("working", "working", "working", "completed")
_OLDER_TEXTS: Final = (None, "", "Good", "Good morning")


def _write_older_task(method: str, state: str, text: str | None) -> JsonObject:
    """A Task of 0.3 without its kind, as VoltAgent has it: one message grows from Task to Task."""
    asked: JsonObject = {"messageId": "m-0", "role": "user", "parts": [{"text": "go"}]}
    said: JsonObject = {
        "messageId": "agents-words",
        "role": "agent",
        "parts": [{"kind": "text", "text": text}],
    }
    written: JsonObject = {"state": state} if text is None else {"state": state, "message": said}
    return {
        "id": "agents-own-task",
        "contextId": "agents-own-context",
        "history": [asked] if text is None or method == "message/send" else [asked, said],
        "status": written,
    }


@pytest.mark.parametrize("method", ["message/send", "message/stream"])
@pytest.mark.requirement("DLV-5")
async def test_a_task_of_0_3_may_lack_its_kind_and_be_in_a_text_sequence(
    rig: Rig, method: str
) -> None:
    streams = method == "message/stream"
    rig.peer.card = {
        "protocolVersion": "0.3.0",
        "name": "echo",
        "description": "Echoes.",
        "version": "1.0.0",
        "url": rig.peer.url + "/",
        "capabilities": {"streaming": streams},
        "skills": [],
    }
    rig.peers.replace([PeerConfig("echo", rig.peer.url, idle_timeout_s=99)])
    tasks = [
        _write_older_task(method, state, text)
        for state, text in zip(_OLDER_STATES, _OLDER_TEXTS, strict=True)
    ]
    if streams:
        body = b"".join(_frame(one).replace(b"data: ", b"data: \x1e") for one in tasks)
        rig.peer.answer_next(ScriptedResponse(200, body, _STREAMED))
    else:
        body = orjson.dumps({"jsonrpc": "2.0", "result": tasks[-1]})
        rig.peer.answer_next(ScriptedResponse(200, body, {"Content-Type": "application/json"}))
    async with asyncio.timeout(_WITHIN_S):
        task = await rig.send("go")
    assert task["status"]["state"] == "TASK_STATE_COMPLETED"
    assert task["status"]["message"]["parts"] == [{"text": "Good morning"}]
    assert [one["parts"] for one in task["history"]] == [[{"text": "go"}]]


async def dream(turn: Turn) -> None:
    await turn.status("TASK_STATE_DREAMING")


@pytest.mark.parametrize("method", ["SendMessage", "SendStreamingMessage"])
@pytest.mark.requirement("ST-20")
async def test_a_task_left_in_a_state_that_a2a_does_not_have_is_called_that(
    rig: Rig, method: str
) -> None:
    rig.terms["echo"] = PeerTerms(replace(PATIENCE, stalled_s=0.3))
    rig.peer.next(dream)
    async with asyncio.timeout(_WITHIN_S):
        if method == "SendMessage":
            status = (await rig.send("hello"))["status"]
        else:
            shown = await rig.collect("SendStreamingMessage", rig.message("go"))
            status = shown[-1].result["statusUpdate"]["status"]
    assert status["message"]["parts"][0]["text"] == (
        "agent 'echo' has left its task in a state that A2A does not have, and its task has not changed for "
        "0.3 s; the gateway keeps following it"
    )
