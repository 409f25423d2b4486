"""An answer to a task's question reaches the agent unchanged and stays in order in the history."""

from __future__ import annotations

import asyncio
import hashlib
from pathlib import Path
from typing import Any, Final, cast

import pytest

from passerelle.core.payloads.governance import HookPoint
from passerelle.core.wire.json import Json, JsonObject
from passerelle.permission_bridge.hook_terms import HookTerms
from passerelle.permission_bridge.rules import Policy, Rule, make_policy
from tests.integration.a2a.rig import Rig
from tests.integration.a2a.test_follow_ups import stop_streaming
from tests.support.engine import ask
from tests.support.scripted_behaviours import auth
from tests.support.scripted_tasks import Turn, TurnScript
from tests.support.waiting import wait_until

pytestmark = pytest.mark.anyio

_WITHIN_S: Final = 8.0
_RESTS: Final = frozenset({"TASK_STATE_INPUT_REQUIRED", "TASK_STATE_COMPLETED"})
EXTENSION: Final = "urn:ext:one"
DATA: Final[Json] = {"data": {"code": "123", "n": 9007199254740993}}
FILE: Final[Json] = {"raw": "AAEC", "filename": "invoice.pdf", "mediaType": "application/pdf"}
LINK: Final[Json] = {"url": "https://e.example/i.pdf", "mediaType": "application/pdf"}
ANSWERS: Final[dict[str, list[Json]]] = {
    "text": [{"text": "blue"}],
    "long-text": [{"text": "blue " * 4_000}],
    "empty-text": [{"text": ""}],
    "data": [DATA],
    "data-null": [{"data": None}],
    "file": [FILE],
    "url": [LINK],
    "mixed": [{"text": "here"}, DATA, FILE, LINK],
    "marked": [{"data": [1], "metadata": {"k": {"v": 1.0}}}],
}


async def say(rig: Rig, task: dict[str, Any], parts: list[Json], *, streams: bool) -> None:
    """Answers the task and waits for its next resting state."""
    params = rig.message("", parts=parts, taskId=task["id"])
    async with asyncio.timeout(_WITHIN_S):
        if not streams:
            await rig.call("SendMessage", params)
            return
        async with rig.stream("SendStreamingMessage", params) as events:
            before_work = True
            async for event in events:
                holder = cast("dict[str, Any]", {**event.result}.popitem()[1])
                state = holder.get("status", {}).get("state")
                before_work = before_work and state != "TASK_STATE_WORKING"
                if not before_work and state in _RESTS:
                    return
        pytest.fail("the stream ended before the task rested")


def read_history(task: dict[str, Any]) -> list[tuple[str, str]]:
    return [
        (str(one["role"])[5:].lower(), str(one["parts"][0].get("text")))
        for one in task.get("history", [])
    ]


@pytest.mark.requirement("LT-5", "ANS-1")
@pytest.mark.parametrize("agent_streams", [True, False], ids=["stream-agent", "unary-agent"])
@pytest.mark.parametrize("streams", [True, False], ids=["stream", "unary"])
@pytest.mark.parametrize("parts", ANSWERS.values(), ids=ANSWERS)
async def test_answer_of_any_parts_reaches_the_agent_as_it_is(
    rig: Rig, parts: list[Json], *, streams: bool, agent_streams: bool
) -> None:
    if not agent_streams:
        stop_streaming(rig)
    asked = await rig.send("ask which one?")
    await say(rig, asked, parts, streams=streams)
    assert rig.peer.messages[-1]["parts"] == parts
    assert len(rig.peer.messages) == 2
    done = await rig.call("GetTask", {"id": asked["id"]})
    assert done["status"]["state"] == "TASK_STATE_COMPLETED"
    assert done["history"][-1]["parts"] == parts


@pytest.mark.requirement("ANS-1")
async def test_message_without_parts_is_refused_with_its_field(rig: Rig) -> None:
    asked = await rig.send("ask which one?")
    params = rig.message("", taskId=asked["id"])
    cast("JsonObject", params["message"])["parts"] = []
    error = await rig.refuse("SendMessage", params)
    assert error["code"] == -32602
    assert "message.parts" in str(error["data"])
    assert rig.counted() == 1


async def ask_two(turn: Turn) -> None:
    await turn.status("INPUT_REQUIRED", "which colour?")


async def ask_next(turn: Turn) -> None:
    await turn.status("WORKING")
    await turn.status("INPUT_REQUIRED", "which size?")


async def ask_silently(turn: Turn) -> None:
    await turn.status("INPUT_REQUIRED")


async def finish(turn: Turn) -> None:
    await turn.status("WORKING")
    await turn.status("COMPLETED", "done")


@pytest.mark.requirement("ANS-3")
@pytest.mark.parametrize("keeps", [True, False], ids=["keeps-history", "keeps-none"])
@pytest.mark.parametrize("agent_streams", [True, False], ids=["stream-agent", "unary-agent"])
@pytest.mark.parametrize("streams", [True, False], ids=["stream", "unary"])
async def test_history_has_each_question_before_its_answer(
    rig: Rig, *, keeps: bool, agent_streams: bool, streams: bool
) -> None:
    rig.peer.keeps_history = keeps
    if not agent_streams:
        stop_streaming(rig)
    rig.peer.next(ask_two, ask_next, finish)
    task = await rig.send("input")
    await say(rig, task, [{"text": "blue"}], streams=streams)
    one = await rig.call("GetTask", {"id": task["id"], "historyLength": 1})
    assert one["status"]["message"]["parts"][0]["text"] == "which size?"
    assert read_history(one) == [("user", "blue")]
    await say(rig, task, [{"text": "large"}], streams=streams)
    done = await rig.call("GetTask", {"id": task["id"]})
    expected = [
        ("user", "input"),
        ("agent", "which colour?"),
        ("user", "blue"),
        ("agent", "which size?"),
        ("user", "large"),
    ]
    assert read_history(done) == expected
    listed = await rig.call("ListTasks", {"contextId": task["contextId"], "historyLength": 2})
    assert read_history(listed["tasks"][0]) == expected[-2:]


@pytest.mark.requirement("ANS-3")
async def test_question_without_text_leaves_the_messages_in_order(rig: Rig) -> None:
    rig.peer.next(ask_silently, finish)
    task = await rig.send("input")
    done = await rig.send("blue", taskId=task["id"])
    assert read_history(done) == [("user", "input"), ("user", "blue")]


@pytest.mark.requirement("ANS-2")
@pytest.mark.parametrize("streams", [True, False], ids=["stream", "unary"])
async def test_answer_keeps_the_members_of_its_request(rig: Rig, *, streams: bool) -> None:
    declare(rig)
    task = await rig.send("ask which one?")
    method = "SendStreamingMessage" if streams else "SendMessage"
    response = await rig.post(method, follow(rig, task), **{"A2A-Extensions": EXTENSION})
    assert response.status_code == 200
    check_request(rig)


@pytest.mark.requirement("ANS-2")
async def test_further_message_keeps_the_members_of_its_request(rig: Rig) -> None:
    declare(rig)
    rig.peer.next(work)
    params = rig.message("work", configuration={"returnImmediately": True})
    task = (await rig.call("SendMessage", params))["task"]
    rig.peer.next(finish)
    params = follow(rig, task)
    await rig.post("SendMessage", params, **{"A2A-Extensions": EXTENSION})
    await wait_until(lambda: rig.counted() == 2, _WITHIN_S, "the further message")
    check_request(rig)


async def work(turn: Turn) -> None:
    await turn.status("WORKING")


def declare(rig: Rig) -> None:
    capabilities = cast("JsonObject", rig.peer.card["capabilities"])
    extensions: list[Json] = [{"uri": EXTENSION}]
    declared: JsonObject = {**capabilities, "extensions": extensions}
    rig.peer.card = {**rig.peer.card, "capabilities": declared}


def follow(rig: Rig, task: dict[str, Any]) -> JsonObject:
    modes: JsonObject = {"acceptedOutputModes": ["text/plain"], "historyLength": 3}
    params = rig.message("blue", configuration=modes, taskId=task["id"])
    return {**params, "metadata": {"rm": 1, "much": "x" * 20_000}}


def check_request(rig: Rig) -> None:
    sent = [one for one in rig.peer.requests if one.method.startswith("Send")][-1]
    assert sent.params["metadata"] == {"rm": 1, "much": "x" * 20_000}
    configuration = cast("JsonObject", sent.params["configuration"])
    assert configuration["acceptedOutputModes"] == ["text/plain"]
    assert "historyLength" not in configuration
    assert EXTENSION in sent.headers["a2a-extensions"]


@pytest.mark.requirement("ANS-4")
async def test_metadata_of_an_artifact_event_stays_on_it(rig: Rig) -> None:
    async def story(turn: Turn) -> None:
        task = await turn.open()
        await turn.status("WORKING")
        artifact: JsonObject = {"artifactId": "a", "parts": [{"text": "x"}]}
        ids: JsonObject = {"taskId": task.id, "contextId": task.context_id}
        await turn.tell({"artifactUpdate": {**ids, "artifact": artifact, "metadata": {"chunk": 1}}})
        await turn.status("COMPLETED")

    rig.peer.next(story)
    events = await rig.collect("SendStreamingMessage", rig.message("go"))
    updates = [one.result["artifactUpdate"] for one in events if "artifactUpdate" in one.result]
    assert updates[0]["metadata"] == {"chunk": 1}
    task_id = updates[0]["taskId"]
    done = await rig.call("GetTask", {"id": task_id})
    assert "chunk" not in done.get("metadata", {})


@pytest.mark.requirement("ANS-5")
async def test_time_without_an_offset_is_shown_as_utc(rig: Rig) -> None:
    async def story(turn: Turn) -> None:
        task = await turn.open()
        ids: JsonObject = {"taskId": task.id, "contextId": task.context_id}
        status: JsonObject = {
            "state": "TASK_STATE_INPUT_REQUIRED",
            "timestamp": "2026-11-23T07:22:50.004108",
        }
        task.record["status"] = status
        await turn.tell({"statusUpdate": {**ids, "status": status}})

    rig.peer.next(story)
    sent = await rig.send("go")
    assert sent["status"]["timestamp"] == "2026-11-23T07:22:50.004108Z"
    task = await rig.call("GetTask", {"id": sent["id"]})
    assert task["status"]["timestamp"] == "2026-11-23T07:22:50.004108Z"
    listed = await rig.call("ListTasks", {"contextId": task["contextId"]})
    assert listed["tasks"][0]["status"]["timestamp"] == "2026-11-23T07:22:50.004108Z"


SECRET: Final = "hunter2-the-credential"


@pytest.mark.requirement("ANS-7")
@pytest.mark.parametrize("streams", [True, False], ids=["stream", "unary"])
@pytest.mark.parametrize("agent_streams", [True, False], ids=["stream-agent", "unary-agent"])
@pytest.mark.parametrize("parts", [[{"text": SECRET}], [{"data": {"token": SECRET}}]])
async def test_answer_to_a_credential_request_reaches_the_agent_and_is_stored_nowhere(
    rig: Rig, tmp_path: Path, parts: list[Json], *, streams: bool, agent_streams: bool
) -> None:
    if not agent_streams:
        stop_streaming(rig)
    rig.peer.next(auth, finish)
    asked = await rig.send("log in at the desk")
    assert asked["status"]["state"] == "TASK_STATE_AUTH_REQUIRED"
    await say(rig, asked, parts, streams=streams)
    assert rig.peer.messages[-1]["parts"] == parts
    assert len(rig.peer.messages) == 2
    done = await rig.call("GetTask", {"id": asked["id"]})
    assert done["status"]["state"] == "TASK_STATE_COMPLETED"
    assert done["history"][-1]["parts"][0]["text"] == "withheld"
    held = read_all(rig, tmp_path)
    assert asked["id"] in held
    assert SECRET not in str(done)
    assert SECRET not in held


def let_pass(_given: JsonObject) -> JsonObject:
    """A hook that allows the message with the credential."""
    return {"verdict": "allow"}


def sign(given: JsonObject) -> JsonObject:
    """A hook that adds to the message."""
    message = cast("JsonObject", given["message"])
    return {"message": {**message, "metadata": {"signed": True}}}


def break_down(given: JsonObject) -> JsonObject:
    """A hook that fails with an error that contains its input."""
    raise ValueError(given["message"])


def make_hook(name: str) -> Policy:
    points: frozenset[HookPoint] = frozenset({"before_delegate"})
    return make_policy(hooks=(HookTerms(name, points, call=f"{__name__}:{name}"),))


DENIES: Final = make_policy((Rule("nothing-leaves", "deny", about=frozenset({"delegations"})),))


@pytest.mark.requirement("ANS-7", "EXT-3")
@pytest.mark.parametrize(
    ("rules", "goes"),
    [
        (make_hook("let_pass"), True),
        (make_hook("sign"), True),
        (make_hook("break_down"), False),
        (DENIES, False),
    ],
    ids=["hook", "hook-that-rewrites", "hook-that-fails", "rule-that-denies"],
)
@pytest.mark.parametrize("parts", [[{"text": SECRET}], [{"data": {"token": SECRET}}]])
async def test_hooks_and_rules_on_a_credential_leave_no_trace_of_it(
    rig: Rig, tmp_path: Path, parts: list[Json], rules: Policy, *, goes: bool
) -> None:
    rig.peer.next(auth, finish)
    asked = await rig.send("log in at the desk")
    rig.rules[0] = rules
    answer = rig.message("", parts=parts, taskId=asked["id"])
    if goes:
        answered = await rig.call("SendMessage", answer)
        assert answered["task"]["status"]["state"] == "TASK_STATE_COMPLETED"
    else:
        refused = await rig.refuse("SendMessage", answer)
        assert "is not sent" in str(refused)
        assert SECRET not in str(refused)
    assert [one["parts"] for one in rig.peer.messages[1:]] == [parts] * goes
    held = read_all(rig, tmp_path)
    assert "permission.evaluated" in held
    assert SECRET not in held
    assert hashlib.sha256(SECRET.encode()).hexdigest() not in held


def want_credential(*further: JsonObject) -> TurnScript:
    """google-adk's request for a credential, together with further parts."""
    wanted: JsonObject = {"id": "adk-2", "name": "adk_request_credential", "args": {}}
    call: JsonObject = {"data": wanted, "metadata": {"adk_type": "function_call"}}

    async def story(turn: Turn) -> None:
        await turn.status("AUTH_REQUIRED", None, [call, *further])

    return story


CREDENTIAL: Final[Json] = {
    "data": {
        "id": "adk-2",
        "name": "adk_request_credential",
        "response": {"exchangedAuthCredential": {"http": {"credentials": {"token": SECRET}}}},
    },
    "metadata": {"adk_type": "function_response"},
}


@pytest.mark.requirement("ANS-7")
@pytest.mark.parametrize("streams", [True, False], ids=["stream", "unary"])
@pytest.mark.parametrize("agent_streams", [True, False], ids=["stream-agent", "unary-agent"])
@pytest.mark.parametrize("parts", [[{"text": SECRET}], [CREDENTIAL]], ids=["text", "native"])
async def test_answer_to_a_credential_request_in_a_dialect_reaches_the_agent(
    rig: Rig, tmp_path: Path, parts: list[Json], *, streams: bool, agent_streams: bool
) -> None:
    if not agent_streams:
        stop_streaming(rig)
    rig.peer.next(want_credential(), finish)
    asked = await rig.send("log in at the desk")
    assert asked["status"]["state"] == "TASK_STATE_AUTH_REQUIRED"
    await say(rig, asked, parts, streams=streams)
    assert rig.peer.messages[-1]["parts"] == parts
    assert len(rig.peer.messages) == 2
    done = await rig.call("GetTask", {"id": asked["id"]})
    assert done["status"]["state"] == "TASK_STATE_COMPLETED"
    assert done["history"][-1]["parts"][0]["text"] == "withheld"
    held = read_all(rig, tmp_path)
    assert "answered_by_caller" in held
    assert SECRET not in str([done, held])


@pytest.mark.requirement("ANS-7")
async def test_answer_is_not_sent_while_an_approval_of_the_same_pause_is_open(rig: Rig) -> None:
    wanted: JsonObject = {"name": "delete_rows", "args": {"n": 42}}
    tool: JsonObject = {
        "data": {
            "id": "adk-3",
            "name": "adk_request_confirmation",
            "args": {"originalFunctionCall": wanted},
        },
        "metadata": {"adk_type": "function_call"},
    }
    rig.peer.next(want_credential(tool), finish)
    asked = await rig.send("log in at the desk")
    answered = await rig.call(
        "SendMessage", rig.message("", parts=[CREDENTIAL], taskId=asked["id"])
    )
    assert answered["task"]["status"]["state"] == "TASK_STATE_AUTH_REQUIRED"
    assert "was kept and not sent" in answered["task"]["status"]["message"]["parts"][0]["text"]
    assert len(rig.peer.messages) == 1


def read_all(rig: Rig, folder: Path) -> str:
    """Returns all stored content: keys and blobs."""
    blobs = [one.read_bytes() for one in folder.rglob("*") if one.is_file()]
    return str([blobs, *(ask_all(rig, key) for key in rig.list_keys())])


def ask_all(rig: Rig, key: bytes) -> object:
    """Returns the value of a key; None when it has expired since it was listed."""
    reads = {
        b"string": ("GET",),
        b"hash": ("HGETALL",),
        b"stream": ("XRANGE", "-", "+"),
        b"zset": ("ZRANGE", "0", "-1"),
        b"set": ("SMEMBERS",),
        b"list": ("LRANGE", "0", "-1"),
    }
    said = ask(rig.engine.url, "TYPE", key.decode())
    kind = said if isinstance(said, bytes) else str(said).encode()
    if kind == b"none":
        return None
    verb, *rest = reads[kind]
    return ask(rig.engine.url, verb, key.decode(), *rest)
