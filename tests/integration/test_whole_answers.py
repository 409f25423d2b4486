"""Whole answers that are written at once read, byte for byte, as those that the server writes from two messages."""

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


class Observed:
    """An offer, of which is noted whether whole answers were taken."""

    def __init__(self, offered: ServerExtensions, took: list[bool]) -> None:
        self.offered = offered
        self.took = took

    @property
    def kept(self) -> HeadCache:
        return self.offered.kept

    def take_body(self) -> bytes | None:
        return self.offered.take_body()

    def watch(self, left: OnCallerLeft) -> Callable[[], object]:
        return self.offered.watch(left)

    def write_at_once(self, status: int, lines: bytes, body: bytes) -> bool:
        self.took.append(self.offered.write_at_once(status, lines, body))
        return self.took[-1]


class App:
    """Answers what the path names; ``took`` is what the server did with it."""

    def __init__(self, *, at_once: bool) -> None:
        self.at_once = at_once
        self.took: list[bool] = []

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        offered = find_server_extensions(scope)
        assert offered
        reply = REPLIES.get(scope["path"]) or HttpReply(
            200, b"", headers={"x-name": "a\r\nx-evil: b"}
        )
        if not self.at_once or not reply.write_at_once(Observed(offered, self.took)):
            await reply.write(send)


async def ask(app: App, asked: bytes) -> bytes:
    """All that is answered until the server closes, but for the time."""
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
async def test_answers_are_the_same_bytes(asked: bytes, took: list[bool] | None) -> None:
    whole, parted = App(at_once=True), App(at_once=False)
    answered = await ask(whole, asked)
    assert answered == await ask(parted, asked)
    assert answered.startswith(b"HTTP/1.1 200 OK\r\ndate: now\r\nserver: ")
    assert took is None or whole.took == took


async def test_header_that_is_none_is_never_written() -> None:
    app = App(at_once=True)
    answered = await ask(app, GET % b"evil")
    assert b"x-evil" not in answered
    assert app.took == []


class Remembering(App):
    """Knows the requests that the server still has."""

    def __init__(self, *, at_once: bool) -> None:
        super().__init__(at_once=at_once)
        self.cycles: list[weakref.ReferenceType[object]] = []

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        served: Any = send
        self.cycles.append(weakref.ref(served.__self__))
        await super().__call__(scope, receive, send)


@pytest.mark.parametrize("at_once", [False, True])
async def test_a_request_that_was_answered_goes_without_the_cycle_collector(
    *, at_once: bool
) -> None:
    app = Remembering(at_once=at_once)
    gc.disable()
    try:
        await ask(app, GET % b"plain" * 9 + LAST % b"plain")
        assert len(app.cycles) == 10
        assert [cycle() for cycle in app.cycles[:-1]] == [None] * 9
    finally:
        gc.enable()
