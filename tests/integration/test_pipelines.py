"""Pipelined requests: a few are queued, and then the server stops reading (H1)."""

from __future__ import annotations

import asyncio
import gc
import weakref
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

import pytest

from passerelle.core.chunks import in_chunks
from passerelle.gateway.request_bounds import WAITING, BoundedRequests
from tests.support.serving import serving
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable

    from starlette.types import Receive, Scope, Send

    from passerelle.gateway.server import Listener

pytestmark = pytest.mark.anyio
WITHIN_S: Final = 20.0
MANY: Final = 3_000
LARGE: Final = 4_000_000
FLOOD: Final = 20_000_000
"""More than a socket buffers."""


def get(number: int) -> bytes:
    return b"GET /%d HTTP/1.1\r\nHost: x\r\n\r\n" % number


def post(number: int) -> bytes:
    return b"POST /%d HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\n\r\n\r\n-\r\n\r\n" % number


LAST: Final = b"GET /last HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"


@dataclass
class App:
    """Responds with the path and the body size of a request, after ``may_answer`` is set."""

    reads: bool = True
    """Whether it receives messages, as an application that watches for disconnects does."""
    may_answer: asyncio.Event = field(default_factory=asyncio.Event)
    begun: int = 0
    more: bytes = b""
    """Bytes appended to each response body."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.begun += 1
        body, more = b"", self.reads
        while more:
            message = await receive()
            body += message.get("body", b"")
            more = message.get("more_body", False)
        leaves = asyncio.ensure_future(receive()) if self.reads else None
        await self.may_answer.wait()
        if leaves is not None:
            leaves.cancel()
        text = b"<%b %d>%b" % (scope["path"].encode(), len(body), self.more)
        headers = [(b"content-length", b"%d" % len(text))]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": text})


@pytest.fixture
def connections(monkeypatch: pytest.MonkeyPatch) -> list[BoundedRequests]:
    """Connections that the server has accepted."""
    made: list[BoundedRequests] = []
    begin = BoundedRequests.connection_made

    def note(connection: BoundedRequests, transport: asyncio.Transport) -> None:
        begin(connection, transport)
        if connection.client is not None:  # None in the self-test of the server
            made.append(connection)

    monkeypatch.setattr(BoundedRequests, "connection_made", note)
    return made


@asynccontextmanager
async def connect(
    listener: Listener,
) -> AsyncGenerator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    reader, writer = await asyncio.open_connection("127.0.0.1", listener.port)
    try:
        yield reader, writer
    finally:
        # Bytes written to a server that does not read are not awaited.
        writer.transport.abort()


@pytest.mark.parametrize("reads", [True, False])
@pytest.mark.parametrize("piece", [1, 7, 100_000_000])
@pytest.mark.parametrize("make", [get, post])
async def test_all_are_answered_in_order_and_the_queue_is_bounded(
    connections: list[BoundedRequests], *, reads: bool, piece: int, make: Callable[[int], bytes]
) -> None:
    app, most = App(reads=reads), 0
    count = MANY if piece > 1 else 40
    data = b"".join(map(make, range(count))) + LAST
    async with serving(app) as listener, connect(listener) as (reader, writer):
        await wait_until(
            lambda: bool(connections), WITHIN_S, "the server has accepted the connection"
        )
        sending = asyncio.create_task(send(writer, data, piece))
        await wait_until(lambda: app.begun == 1, WITHIN_S, "the first one is served")
        await wait_until(
            lambda: len(connections[0].pipeline) in {1, WAITING}, WITHIN_S, "some of them wait"
        )
        app.may_answer.set()
        answer = b""
        async with asyncio.timeout(WITHIN_S):
            while got := await reader.read(1_000):
                answer += got
                most = max(most, len(connections[0].pipeline))
        await sending
    size = 9 if make is post else 0
    wanted = [*(b"</%d %d>" % (number, size if reads else 0) for number in range(count))]
    assert answer.count(b"HTTP/1.1 200 ") == count + 1
    at = -1
    for text in (*wanted, b"</last 0>"):
        at, before = answer.find(text, at + 1), at
        assert at > before, text
    assert most <= WAITING


async def send(writer: asyncio.StreamWriter, data: bytes, piece: int) -> None:
    for part in in_chunks(data, piece):
        writer.write(part)
        if piece < len(data):
            await writer.drain()
            await asyncio.sleep(0)
    await writer.drain()


@pytest.mark.parametrize("make", [get, post])
async def test_server_stops_reading_from_a_client_that_does_not_read(
    connections: list[BoundedRequests], make: Callable[[int], bytes]
) -> None:
    app = App(more=b"a" * 65_536)
    app.may_answer.set()
    async with serving(app) as listener, connect(listener) as (_, writer):
        data = make(0) * (FLOOD // len(make(0)))
        sending = asyncio.create_task(send(writer, data, 65_536))
        await wait_until(
            lambda: bool(connections) and connections[0].flow.write_paused,
            WITHIN_S,
            "the send buffer is full",
        )
        served = app.begun

        def is_still() -> bool:
            nonlocal served
            before, served = served, app.begun
            return before == served and connections[0].flow.read_paused

        await wait_until(is_still, WITHIN_S, "nothing more is served or read")
        assert len(connections[0].pipeline) <= WAITING
        assert not sending.done()
        sending.cancel()


async def test_body_of_a_queued_request_is_not_read_in_advance(
    connections: list[BoundedRequests],
) -> None:
    app = App()
    head = b"POST /large HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: %d\r\n\r\n"
    async with serving(app) as listener, connect(listener) as (reader, writer):
        data = get(0) + get(1) + head % LARGE + b"a" * LARGE
        sending = asyncio.create_task(send(writer, data, 65_536))
        await wait_until(
            lambda: bool(connections) and connections[0].flow.read_paused,
            WITHIN_S,
            "reading has stopped",
        )
        assert connections[0].cycle is not None
        assert len(connections[0].cycle.body) < LARGE // 4
        app.may_answer.set()
        async with asyncio.timeout(WITHIN_S):
            answer = await reader.read()
        await sending
    assert b"</large %d>" % LARGE in answer


async def test_malformed_request_behind_queued_ones_ends_the_connection() -> None:
    app = App()
    app.may_answer.set()
    async with serving(app) as listener, connect(listener) as (reader, writer):
        writer.write(b"".join(map(get, range(2 * WAITING))) + b"GET / HTTP/1.1\r\nHost : x\r\n\r\n")
        async with asyncio.timeout(WITHIN_S):
            answer = await reader.read()
    assert b"HTTP/1.1 400 " in answer


async def test_unsupported_upgrade_behind_queued_requests_handles_none_twice() -> None:
    """The upgrade request and the request after it are answered as HTTP."""
    app = App()
    app.may_answer.set()
    upgrade = b"GET /up HTTP/1.1\r\nHost: x\r\nConnection: upgrade\r\nUpgrade: h2c\r\n\r\n"
    async with serving(app) as listener, connect(listener) as (reader, writer):
        writer.write(b"".join(map(get, range(2 * WAITING))) + upgrade + LAST)
        async with asyncio.timeout(WITHIN_S):
            answer = await reader.read()
    assert answer.count(b"HTTP/1.1 200 ") == 2 * WAITING + 2


@dataclass
class WaitingApp:
    """Responds after ``may_answer`` is set, even after a disconnect; ``left`` lists disconnected requests."""

    may_answer: asyncio.Event = field(default_factory=asyncio.Event)
    begun: list[str] = field(default_factory=list[str])
    left: list[str] = field(default_factory=list[str])

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        path = scope["path"]
        self.begun.append(path)
        while (await receive())["type"] != "http.disconnect":
            pass
        self.left.append(path)
        await self.may_answer.wait()
        if path == "/0":
            return
        await send(
            {"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"2")]}
        )
        await send({"type": "http.response.body", "body": b"ok"})


@pytest.mark.parametrize("first", [0, 1])
@pytest.mark.parametrize("count", [1, 2, WAITING + 1])
async def test_disconnect_with_queued_requests_ends_only_the_active_one(
    connections: list[BoundedRequests], caplog: pytest.LogCaptureFixture, first: int, count: int
) -> None:
    """The active request gets the disconnect, the queued ones are not started, and no error is logged."""
    app = WaitingApp()
    async with serving(app) as listener:
        async with connect(listener) as (_, writer):
            writer.write(b"".join(map(get, range(first, first + count))))
            await wait_until(lambda: app.begun, WITHIN_S, "the first one is served")
            await wait_until(
                lambda: len(connections[0].pipeline) == count - 1,
                WITHIN_S,
                "the others wait",
            )
        await wait_until(lambda: app.left == [f"/{first}"], WITHIN_S, "the disconnect is noticed")
        app.may_answer.set()
        await wait_until(lambda: not connections[0].tasks, WITHIN_S, "nothing is served")
    assert app.begun == [f"/{first}"]
    assert not connections[0].pipeline
    assert not [record for record in caplog.records if record.levelname == "ERROR"]


async def test_disconnect_is_noticed_on_the_next_response_while_reading_is_paused(
    connections: list[BoundedRequests], caplog: pytest.LogCaptureFixture
) -> None:
    app = App()
    async with serving(app) as listener:
        async with connect(listener) as (_, writer):
            writer.write(b"".join(map(get, range(MANY))))
            await wait_until(lambda: app.begun == 1, WITHIN_S, "the first one is served")
            await wait_until(
                lambda: len(connections[0].pipeline) == WAITING, WITHIN_S, "others wait"
            )
        app.may_answer.set()
        (connection,) = connections
        await wait_until(connection.transport.is_closing, WITHIN_S, "the connection has ended")
        await wait_until(lambda: not connection.tasks, WITHIN_S, "nothing is served")
    assert app.begun < MANY
    assert not connection.pipeline
    assert not [record for record in caplog.records if record.levelname == "ERROR"]


async def test_closed_connection_with_queued_requests_is_freed_without_garbage_collection(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    app, made = WaitingApp(), list[weakref.ref[BoundedRequests]]()
    begin = BoundedRequests.connection_made

    def note(connection: BoundedRequests, transport: asyncio.Transport) -> None:
        begin(connection, transport)
        if connection.client is not None:  # None in the self-test of the server
            made.append(weakref.ref(connection))

    monkeypatch.setattr(BoundedRequests, "connection_made", note)
    app.may_answer.set()
    gc.disable()
    try:
        async with serving(app) as listener:
            async with connect(listener) as (_, writer):
                writer.write(b"".join(map(get, range(1, WAITING))))
                await wait_until(lambda: app.begun, WITHIN_S, "the first one is served")
            await wait_until(lambda: app.left, WITHIN_S, "the disconnect is noticed")
        assert [connection() for connection in made] == [None]
    finally:
        gc.enable()
