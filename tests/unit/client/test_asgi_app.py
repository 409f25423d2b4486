"""An ASGI application called in process: its input, the outcomes of its responses, and a caller that leaves."""

from __future__ import annotations

import asyncio
from typing import Any

import orjson
import pytest

from passerelle.client.asgi_app import (
    A2aError,
    App,
    AppAnswer,
    AppOutcome,
    Fault,
    HttpError,
    InProcess,
    Message,
    read_own_card,
    run_lifespan,
)
from passerelle.core.wire.json import JsonObject

pytestmark = pytest.mark.anyio

Receive = Any
Send = Any


def answer(
    body: object, status: int = 200, media_type: str = "application/json", **headers: str
) -> App:
    """An application that always answers the same."""

    async def app(_scope: Message, receive: Receive, send: Send) -> None:
        assert (await receive())["type"] == "http.request"
        fields = {"content-type": media_type, **headers}
        raw = [(name.replace("_", "-").encode(), value.encode()) for name, value in fields.items()]
        await send({"type": "http.response.start", "status": status, "headers": raw})
        content = body if isinstance(body, bytes) else orjson.dumps(body)
        await send({"type": "http.response.body", "body": content[:5], "more_body": True})
        await send({"type": "http.response.body", "body": content[5:]})

    return app


async def ask(app: App, items: list[JsonObject] | None = None) -> AppOutcome:
    heard: list[JsonObject] = [] if items is None else items

    async def take(item: JsonObject) -> None:
        heard.append(item)

    exchange = InProcess(app, "/rpc").begin("GetTask", {"id": "t"}, {"A2A-Version": "1.0"}, take)
    return await asyncio.wait_for(exchange.run(), 10)


@pytest.mark.parametrize(
    ("app", "outcome"),
    [
        (answer({"jsonrpc": "2.0", "id": 1, "result": {"id": "t"}}), AppAnswer({"id": "t"})),
        (
            answer({"jsonrpc": "2.0", "id": 1, "error": {"code": -32001, "message": "none"}}),
            A2aError(-32001, "none", None),
        ),
        (
            answer({"error": {"code": -32001, "message": "none", "data": [1]}}, 400),
            A2aError(-32001, "none", [1], 400),
        ),
        (
            answer({"error": {"code": -32603, "message": "later"}}, 429, retry_after="7"),
            A2aError(-32603, "later", None, 429, 7),
        ),
        (answer(b"down", 503, "text/plain", retry_after="7"), HttpError(503, 7)),
        (answer(b"broken", 500, "text/plain"), HttpError(500, None)),
        (answer(b"hello", 200, "text/plain"), Fault("not JSON")),
        (answer([1]), Fault("no JSON-RPC response")),
    ],
)
async def test_each_response_of_an_application_becomes_one_outcome(
    app: App, outcome: AppOutcome
) -> None:
    assert await ask(app) == outcome


async def test_an_application_gets_the_request_of_its_json_rpc_binding() -> None:
    seen: list[Message] = []

    async def app(scope: Message, receive: Receive, send: Send) -> None:
        seen.extend([scope, await receive()])
        await answer({"result": {}})(scope, seen_again, send)

    async def seen_again() -> Message:
        return seen[1]

    assert await ask(app) == AppAnswer({})
    scope, request = seen
    assert (scope["method"], scope["path"], scope["type"]) == ("POST", "/rpc", "http")
    headers = dict(scope["headers"])
    assert headers[b"a2a-version"] == b"1.0"
    assert headers[b"content-length"] == str(len(request["body"])).encode()
    assert orjson.loads(request["body"]) == {
        "jsonrpc": "2.0",
        "id": 1,
        "method": "GetTask",
        "params": {"id": "t"},
    }


def stream(*events: object) -> App:
    body = b"".join(b"data: %b\n\n" % orjson.dumps(event) for event in events)
    return answer(body, media_type="text/event-stream; charset=utf-8")


async def test_items_of_a_stream_are_handed_on_in_order() -> None:
    items: list[JsonObject] = []
    events = [{"result": {"n": number}} for number in range(3)]
    assert await ask(stream(*events), items) == AppAnswer(None)
    assert items == [{"n": 0}, {"n": 1}, {"n": 2}]


async def test_a_stream_ends_with_the_error_in_it() -> None:
    items: list[JsonObject] = []
    failed = stream(
        {"result": {"n": 0}}, {"error": {"code": -32603, "message": "no"}}, {"result": {}}
    )
    assert await ask(failed, items) == A2aError(-32603, "no", None)
    assert items == [{"n": 0}]


async def test_a_stream_cut_inside_an_event_is_a_fault() -> None:
    cut = answer(b'data: {"result":', media_type="text/event-stream")
    assert await ask(cut) == Fault("the stream ended inside an event")


async def test_an_application_that_raises_has_failed_as_over_http(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def app(_scope: Message, _receive: Receive, _send: Send) -> None:
        raise ValueError("oh")

    assert await ask(app) == HttpError(500, None)
    assert "ValueError: oh" in caplog.text


@pytest.mark.parametrize(
    ("more", "outcome"), [(False, HttpError(500, None)), (True, Fault("ValueError: oh"))]
)
async def test_an_exception_after_a_response_changes_nothing_about_it(
    *, more: bool, outcome: AppOutcome
) -> None:
    """Starlette answers with 500 and raises again, for the log of the server."""

    async def app(_scope: Message, _receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 500, "headers": []})
        await send({"type": "http.response.body", "body": b"failed", "more_body": more})
        raise ValueError("oh")

    assert await ask(app) == outcome


async def test_an_application_gets_a_disconnect_when_its_caller_leaves() -> None:
    async def app(_scope: Message, receive: Receive, send: Send) -> None:
        await receive()
        gone = await receive()
        await answer({"result": {"said": gone["type"]}})(_scope, given, send)

    async def given() -> Message:
        return {"type": "http.request", "body": b""}

    async def take(_item: JsonObject) -> None:
        return

    exchange = InProcess(app, "/").begin("GetTask", {}, {}, take)
    running = asyncio.create_task(exchange.run())
    exchange.leave()
    assert await asyncio.wait_for(running, 10) == AppAnswer({"said": "http.disconnect"})


async def test_the_card_of_an_application_is_read_in_process() -> None:
    assert await read_own_card(answer({"name": "x"})) == {"name": "x"}
    for app in (answer({"name": "x"}, 404), answer(b"html", 200, "text/html"), answer([1])):
        with pytest.raises(LookupError):
            await read_own_card(app)


async def test_a_lifespan_is_begun_and_ended_around_the_work() -> None:
    said: list[str] = []

    async def app(_scope: Message, receive: Receive, send: Send) -> None:
        for kind in ("startup", "shutdown"):
            assert (await receive())["type"] == f"lifespan.{kind}"
            said.append(kind)
            await send({"type": f"lifespan.{kind}.complete"})

    async with run_lifespan(app):
        assert said == ["startup"]
    assert said == ["startup", "shutdown"]


async def test_an_application_without_a_lifespan_is_none_the_worse() -> None:
    async def app(_scope: Message, _receive: Receive, _send: Send) -> None:
        raise NotImplementedError

    async with run_lifespan(app):
        pass


async def test_a_failed_startup_of_an_application_is_raised() -> None:
    async def app(_scope: Message, receive: Receive, send: Send) -> None:
        await receive()
        await send({"type": "lifespan.startup.failed", "message": "no disk"})

    with pytest.raises(RuntimeError, match="no disk"):
        async with run_lifespan(app):
            pass
