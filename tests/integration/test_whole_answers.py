"""Responses written in one call: byte for byte equal to those sent as two ASGI messages."""

import asyncio
import gc
import re
import weakref
from collections.abc import Callable, Mapping
from typing import Any, Final

import pytest
from starlette.types import Receive, Scope, Send

from passerelle.gateway.a2a.heads import HeadCache, ServerExtensions, find_server_extensions
from passerelle.gateway.a2a.http_request import OnCallerLeft
from passerelle.gateway.a2a.reply import HttpReply
from tests.support.serving import serving

pytestmark = pytest.mark.anyio
WITHIN_S = 20.0
GET: Final = b"GET /%b HTTP/1.1\r\nHost: x\r\n\r\n"
LAST: Final = b"GET /%b HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
REPLIES: Final[Mapping[str, HttpReply]] = {
    "/plain": HttpReply(200, b'{"a":1}', headers={"cache-control": "no-store"}),
    "/empty": HttpReply(202, b"", None),
    "/error": HttpReply(503, b"{}", headers={"Retry-After": "1", "cache-control": "no-store"}),
    "/long": HttpReply(200, b"x" * 300_000),
}


class ObservedExtensions:
    """Server extensions; records whether responses were written at once."""

    def __init__(self, extensions: ServerExtensions, took: list[bool]) -> None:
        self.extensions = extensions
        self.took = took

    @property
    def kept(self) -> HeadCache:
        return self.extensions.kept

    def take_body(self) -> bytes | None:
        return self.extensions.take_body()

    def watch(self, left: OnCallerLeft) -> Callable[[], object]:
        return self.extensions.watch(left)

    def write_at_once(self, status: int, lines: bytes, body: bytes) -> bool:
        self.took.append(self.extensions.write_at_once(status, lines, body))
        return self.took[-1]


class App:
    """Responds by path; ``took`` lists whether the server wrote each response at once."""

    def __init__(self, *, at_once: bool) -> None:
        self.at_once = at_once
        self.took: list[bool] = []

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        extensions = find_server_extensions(scope)
        assert extensions
        reply = REPLIES.get(scope["path"]) or HttpReply(
            200, b"", headers={"x-name": "a\r\nx-evil: b"}
        )
        if not self.at_once or not reply.write_at_once(ObservedExtensions(extensions, self.took)):
            await reply.write(send)


async def ask(app: App, asked: bytes) -> bytes:
    """The response bytes until the server closes, with the date removed."""
    async with serving(app) as listener, asyncio.timeout(WITHIN_S):
        reader, writer = await asyncio.open_connection("127.0.0.1", listener.port)
        try:
            writer.write(asked)
            answered = await reader.read()
        finally:
            writer.close()
    return re.sub(rb"date: [^\r]+", b"date: now", answered)


@pytest.mark.parametrize(
    ("asked", "took"),
    [
        (LAST % b"plain", [False]),
        (b"GET /plain HTTP/1.0\r\n\r\n", [False]),
        (b"HEAD /plain HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n", [False]),
        (b"HEAD /plain HTTP/1.1\r\nHost: x\r\n\r\n" + LAST % b"empty", [False, False]),
        (GET % b"plain" + GET % b"empty" + GET % b"error" + LAST % b"plain", [True] * 3 + [False]),
        (GET % b"long" + GET % b"long" + LAST % b"plain", None),
    ],
)
async def test_responses_are_byte_for_byte_equal(asked: bytes, took: list[bool] | None) -> None:
    single, split = App(at_once=True), App(at_once=False)
    answered = await ask(single, asked)
    assert answered == await ask(split, asked)
    assert answered.startswith(b"HTTP/1.1 200 OK\r\ndate: now\r\nserver: ")
    assert took is None or single.took == took


async def test_invalid_header_is_never_written() -> None:
    app = App(at_once=True)
    answered = await ask(app, GET % b"evil")
    assert b"x-evil" not in answered
    assert app.took == []


class TrackingApp(App):
    """Has weak references to the requests of the server."""

    def __init__(self, *, at_once: bool) -> None:
        super().__init__(at_once=at_once)
        self.cycles: list[weakref.ReferenceType[object]] = []

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        served: Any = send
        self.cycles.append(weakref.ref(served.__self__))
        await super().__call__(scope, receive, send)


@pytest.mark.parametrize("at_once", [False, True])
async def test_finished_request_is_freed_without_garbage_collection(*, at_once: bool) -> None:
    app = TrackingApp(at_once=at_once)
    gc.disable()
    try:
        await ask(app, GET % b"plain" * 9 + LAST % b"plain")
        assert len(app.cycles) == 10
        assert [cycle() for cycle in app.cycles[:-1]] == [None] * 9
    finally:
        gc.enable()
