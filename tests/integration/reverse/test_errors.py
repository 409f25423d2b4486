"""Errors of an agent that dials in: they mean the same as those of an agent that is called over HTTP."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from typing import Final

import orjson
import pytest
from a2a.server.agent_execution import RequestContext
from a2a.server.events import EventQueue
from a2a.utils.errors import InvalidParamsError
from starlette.responses import JSONResponse, Response
from starlette.types import Message, Receive, Scope, Send

from passerelle.client.agent import ReverseAgent
from passerelle.client.asgi_app import MAX_ITEM_BYTES, App
from passerelle.core.wire.json import JsonObject
from tests.integration.callers.rig import Instance
from tests.integration.reverse.rig import (
    NAME,
    Caller,
    CountingExecutor,
    Rig,
    find_url,
    read_texts,
)

pytestmark = pytest.mark.anyio

KEY: Final = "AKIAABCDEFGHIJKLMNOP"
REDACT: Final[JsonObject] = {"redact": [{"name": "aws-key", "pattern": "AKIA[0-9A-Z]{16}"}]}
FRAME_BYTES: Final = 65_536


class Refusing(CountingExecutor):
    """Refuses ``refuse``, and fails with as many words as the number after ``fail``."""

    async def execute(self, context: RequestContext, event_queue: EventQueue) -> None:
        word, _, rest = context.get_user_input().partition(" ")
        if word == "refuse":
            raise InvalidParamsError(message=f"no {KEY}", data={"hint": f"ask {KEY}"})
        if word == "fail":
            raise RuntimeError("it broke. " * int(rest))
        await super().execute(context, event_queue)


def limit_first(app: App, status: int) -> App:
    """Answers the first call with an A2A error under an HTTP status of a busy agent."""
    error = {"code": -32603, "message": "too many requests"}
    refused = [
        JSONResponse({"jsonrpc": "2.0", "id": 1, "error": error}, status, {"Retry-After": "1"})
    ]

    async def serve(scope: Scope, receive: Receive, send: Send) -> None:
        if scope.get("method") == "POST" and refused:
            await refused.pop()(scope, receive, send)
        else:
            await app(scope, receive, send)

    return serve


@asynccontextmanager
async def link(rig: Rig, instance: Instance, app: App | None = None) -> AsyncGenerator[None]:
    rig.agent.executor = Refusing()
    handler = app or rig.agent.make()
    async with ReverseAgent(
        find_url(instance), token=f"{NAME}-key", name=NAME, handler=handler, jitter=lambda: 0.05
    ) as agent:
        await agent.wait_served()
        yield


@pytest.mark.parametrize("status", [429, 503])
async def test_an_agent_that_is_busy_in_words_of_a2a_gets_the_message_again(
    rig: Rig, status: int
) -> None:
    instance = await rig.start()
    async with link(rig, instance, limit_first(rig.agent.make(), status)):
        assert read_texts(await Caller(instance).send("hello")) == ["hello"]


async def test_typed_details_of_an_agents_error_reach_the_caller_redacted(rig: Rig) -> None:
    instance = await rig.start(outputs=REDACT)
    caller = Caller(instance)
    async with link(rig, instance):
        error = (await caller.ask("SendMessage", caller.write("refuse")))["error"]
    assert (error["code"], error["message"]) == (-32602, "no [redacted: aws-key]")
    assert error["data"][1]["metadata"] == {"hint": "ask [redacted: aws-key]"}


async def test_an_error_longer_than_a_frame_ends_no_other_call_of_the_link(rig: Rig) -> None:
    instance = await rig.start()
    caller = Caller(instance)
    async with link(rig, instance):
        task = await caller.begin("silent")
        await caller.until(task, "WORKING")
        error = (await caller.ask("SendMessage", caller.write(f"fail {FRAME_BYTES}")))["error"]
        assert error["message"].startswith("it broke.")
        assert len(orjson.dumps(error)) < FRAME_BYTES
        record = await caller.read_record(task["id"])
        rig.agent.executor.silence.set()
        await caller.until(task, "COMPLETED")
    events = await instance.read_session(record["sessionId"])
    assert "run.reconnecting" not in {event["type"] for event in events}
    assert rig.agent.executor.executed["m-1"] == 1


def answer_all(app: App, status: int, media_type: str, write: Callable[[JsonObject], str]) -> App:
    """Answers each message with what ``write`` makes of it, and everything else as ``app`` does."""

    async def serve(scope: Scope, receive: Receive, send: Send) -> None:
        if scope.get("method") != "POST":
            await app(scope, receive, send)
            return
        request = await receive()
        call: JsonObject = orjson.loads(request["body"])
        if call["method"] in {"SendMessage", "SendStreamingMessage"}:
            answer = Response(write(call), status, media_type=media_type)
            await answer(scope, receive, send)
            return

        async def receive_again() -> Message:
            return request

        await app(scope, receive_again, send)

    return serve


def write_stream(call: JsonObject) -> str:
    """A task that completes, as server-sent events."""
    names: JsonObject = {"taskId": "t-1", "contextId": "c-1"}
    done: JsonObject = {"state": "TASK_STATE_COMPLETED"}
    artifact: JsonObject = {"artifactId": "a-1", "parts": [{"text": "hello"}]}
    events: list[JsonObject] = [
        {"task": {"id": "t-1", "contextId": "c-1", "status": {"state": "TASK_STATE_WORKING"}}},
        {"artifactUpdate": {**names, "artifact": artifact}},
        {"statusUpdate": {**names, "status": done}},
    ]
    answers = (orjson.dumps({"jsonrpc": "2.0", "id": call["id"], "result": one}) for one in events)
    return "".join(f"data: {answer.decode()}\n\n" for answer in answers)


@pytest.mark.parametrize("status", [200, 201, 202])
async def test_a_stream_under_any_status_of_success_is_read(rig: Rig, status: int) -> None:
    instance = await rig.start()
    caller = Caller(instance)
    app = answer_all(rig.agent.make(), status, "text/event-stream", write_stream)
    async with link(rig, instance, app):
        frames = await caller.collect("SendStreamingMessage", caller.write("hello"))
        assert read_texts(await caller.read(frames[0]["task"])) == ["hello"]


async def test_an_answer_over_the_limit_fails_its_task_at_once(rig: Rig) -> None:
    instance = await rig.start()
    caller = Caller(instance)
    app = answer_all(
        rig.agent.make(), 200, "application/json", lambda _: " " * (MAX_ITEM_BYTES + 1)
    )
    async with link(rig, instance, app):
        answer = await caller.ask("SendMessage", caller.write("hello"))
    assert answer["error"]["data"][0]["reason"] == "INVALID_AGENT_RESPONSE"


async def test_an_application_that_raises_has_failed_and_is_not_searched(rig: Rig) -> None:
    def raise_at_once(_call: JsonObject) -> str:
        raise RuntimeError("broken")

    instance = await rig.start()
    caller = Caller(instance)
    app = answer_all(rig.agent.make(), 200, "application/json", raise_at_once)
    async with link(rig, instance, app):
        answer = await caller.ask("SendMessage", caller.write("hello"))
    assert answer["error"]["message"] == f"agent '{NAME}' failed with HTTP 500"
