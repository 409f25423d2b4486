"""Requests with a cached head: served like all other requests, however their bytes arrive."""

import asyncio
import gc
import random  # noqa: TID251  seeded
import re
import weakref
from collections.abc import AsyncGenerator, Callable, Iterable
from contextlib import asynccontextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final, cast

import pytest
from starlette.types import Receive, Scope, Send

from passerelle.gateway import server
from passerelle.gateway.a2a.heads import (
    AsyncHandler,
    HeadCache,
    ServerExtensions,
    SyncHandler,
    find_server_extensions,
)
from passerelle.gateway.a2a.reply import HttpReply
from passerelle.gateway.known_heads import KnownHeads
from passerelle.gateway.server import Listener
from tests.support.serving import serving
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from passerelle.gateway.a2a.heads import ParsedHead

pytestmark = pytest.mark.anyio
WITHIN_S = 20.0
IDLE_S = 0.4
LAST: Final = b"GET /last HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"


def post(body: bytes, *, path: str = "/a", more: bytes = b"") -> bytes:
    line = f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n"
    return line.encode() + more + b"\r\n" + body


CHUNKED: Final = (
    b"POST /a HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n3\r\none\r\n0\r\n\r\n"
)
GET: Final = b"GET /a?b=c HTTP/1.1\r\nHost: x\r\n\r\n"
HEAD: Final = b"HEAD /a HTTP/1.1\r\nHost: x\r\n\r\n"


@dataclass
class App:
    """Echoes each request; ``caches`` has the head cache of each one."""

    takes: bool = True
    """Whether a body that has arrived is taken without a message."""
    waits: bool = False
    """Whether there is no response until the caller has disconnected."""
    may_answer: asyncio.Event = field(default_factory=asyncio.Event)
    caches: list[HeadCache] = field(default_factory=list[HeadCache])
    left: int = 0

    def __post_init__(self) -> None:
        self.may_answer.set()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        extensions = find_server_extensions(scope)
        assert extensions
        await self.serve(extensions, scope, receive, send)

    async def serve(
        self, extensions: ServerExtensions, scope: Scope, receive: Receive, send: Send
    ) -> None:
        self.caches.append(extensions.kept)
        body = extensions.take_body() if self.takes else None
        if body is None:
            body = await read(receive)
        if self.waits:
            gone = asyncio.Event()
            unwatch = extensions.watch(gone.set)
            await gone.wait()
            unwatch()
            self.left += 1
            return
        await self.may_answer.wait()
        names = [f"{name.decode()}={value.decode()}" for name, value in scope["headers"]]
        parts = (scope["method"], scope["path"], scope["query_string"].decode(), *names)
        reply = HttpReply(200, "|".join(parts).encode() + b"|" + body, "text/plain")
        if not reply.write_at_once(extensions):
            await reply.write(send, head_only=scope["method"] == "HEAD")


@dataclass
class CachingApp(App):
    """Handles a cached head as the A2A interface does, without a further ASGI call.

    ``known`` has a weak reference to each request handled so.
    """

    known: list[Callable[[], Any]] = field(default_factory=list[Callable[[], Any]])
    fails: bool = False
    """Whether a request with a cached head raises an exception."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        extensions = find_server_extensions(scope)
        assert extensions
        assert extensions.kept.parsed is None
        extensions.kept.parsed = cast("ParsedHead", self)
        await self.serve(extensions, scope, receive, send)

    @property
    def handle_sync(self) -> SyncHandler:
        return self.begin

    def begin(
        self, extensions: ServerExtensions, body: bytes, _receive: Receive, _send: Send
    ) -> bool:
        return False

    @property
    def handle_async(self) -> AsyncHandler:
        return self.note

    async def note(
        self, extensions: ServerExtensions, scope: Scope, receive: Receive, send: Send
    ) -> None:
        self.known.append(weakref.ref(extensions))
        if self.fails:
            raise LookupError
        await self.serve(extensions, scope, receive, send)


APPS: Final = (App, CachingApp)


async def read(receive: Receive) -> bytes:
    body, more = b"", True
    while more:
        message = await receive()
        body += message.get("body", b"")
        more = message.get("more_body", False)
    return body


@asynccontextmanager
async def connect(
    listener: Listener,
) -> AsyncGenerator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    reader, writer = await asyncio.open_connection("127.0.0.1", listener.port)
    try:
        yield reader, writer
    finally:
        writer.close()


async def ask(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, asked: bytes) -> bytes:
    """The body of the response to one request."""
    writer.write(asked)
    head = await reader.readuntil(b"\r\n\r\n")
    length = re.search(rb"content-length: ([0-9]+)", head)
    assert length
    return b"" if asked.startswith(b"HEAD") else await reader.readexactly(int(length[1]))


@pytest.fixture
def received(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The sizes of the reads of the server."""
    lengths: list[int] = []
    real = KnownHeads.data_received

    def note(self: KnownHeads, data: bytes) -> None:
        if self.client is not None:  # None in the self-test of the server
            lengths.append(len(data))
        real(self, data)

    monkeypatch.setattr(KnownHeads, "data_received", note)
    return lengths


async def write_piece(writer: asyncio.StreamWriter, piece: bytes, received: list[int]) -> None:
    """Returns after the server has read it, so that it is read separately."""
    wanted = sum(received) + len(piece)
    writer.write(piece)
    await wait_until(lambda: sum(received) == wanted, WITHIN_S, "the piece is read")


@pytest.mark.parametrize("kind", APPS)
@pytest.mark.parametrize("takes", [True, False])
async def test_repeated_head_is_parsed_once(kind: type[App], *, takes: bool) -> None:
    app = kind(takes)
    async with serving(app) as listener, asyncio.timeout(WITHIN_S), connect(listener) as ends:
        for body in (b"one", b"two", b"six"):
            response = b"POST|/a||host=x|content-length=3|" + body
            assert await ask(*ends, post(body)) == response
    assert app.caches == [app.caches[0]] * 3


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (post(b"one"), post(b"one", path="/b")),
        (post(b"one"), post(b"four")),
        (post(b"one"), post(b"one", more=b"A: b\r\n")),
        (post(b"one", more=b"Expect: 100-continue\r\n"),) * 2,
        (CHUNKED, CHUNKED),
        (GET, HEAD),
        (post(b"one") + b"\r\n", post(b"two") + b"\r\n"),
    ],
)
async def test_different_or_special_head_is_parsed_again(first: bytes, second: bytes) -> None:
    app = App()
    async with serving(app) as listener, asyncio.timeout(WITHIN_S), connect(listener) as ends:
        for asked in (first, second):
            await ask(*ends, asked)
    assert app.caches[0] is not app.caches[1]


async def test_head_is_cached_per_connection() -> None:
    app = App()
    async with serving(app) as listener, asyncio.timeout(WITHIN_S):
        for _ in range(2):
            async with connect(listener) as ends:
                await ask(*ends, GET)
    assert app.caches[0] is not app.caches[1]


def cut(asked: bytes, chance: random.Random) -> Iterable[bytes]:
    """Pieces of random lengths; about every second one ends where a request does."""
    ends = [match.start() for match in re.finditer(rb"(?:POST|GET|HEAD) ", asked)][1:]
    marks = {0, len(asked)}
    for _ in range(chance.randrange(24)):
        at_end = chance.random() < 0.5
        marks.add(chance.choice(ends) if at_end else chance.randrange(len(asked)))
    return (asked[begin:end] for begin, end in pairwise(sorted(marks)))


@pytest.mark.parametrize("takes", [True, False])
@pytest.mark.parametrize("kind", APPS)
@pytest.mark.parametrize("seed", range(12))
async def test_responses_equal_those_without_the_cache(
    seed: int,
    kind: type[App],
    received: list[int],
    monkeypatch: pytest.MonkeyPatch,
    *,
    takes: bool,
) -> None:
    chance = random.Random(seed)  # noqa: S311  a seed that can be repeated
    kinds = [post(b"one"), post(b"two"), post(b"three", path="/b"), GET, HEAD, CHUNKED, post(b"")]
    kinds += [post(b"one") + b"\r\n", post(b"one\r\n"), b"\r\n" + GET]
    some = chance.sample(kinds, 3)
    asked = b"".join(chance.choice(some) for _ in range(16)) + LAST
    pieces = list(cut(asked, chance))

    async def answer() -> bytes:
        received.clear()
        async with serving(kind(takes)) as listener, connect(listener) as (reader, writer):
            for piece in pieces:
                await write_piece(writer, piece, received)
            return re.sub(rb"date: [^\r]+", b"", await reader.read())

    known = await answer()

    def skip_cache(_self: KnownHeads, _data: bytes) -> None:
        return None

    monkeypatch.setattr(KnownHeads, "_make_known_head", skip_cache)
    assert known == await answer()
    assert known.count(b"HTTP/1.1 200 OK") == 17


@pytest.mark.parametrize("kind", APPS)
async def test_queued_request_with_a_cached_head_waits_for_the_previous_response(
    kind: type[App], received: list[int]
) -> None:
    app = kind()
    async with serving(app) as listener, asyncio.timeout(WITHIN_S), connect(listener) as ends:
        await ask(*ends, post(b"one"))
        app.may_answer.clear()
        reader, writer = ends
        for asked in (post(b"two"), post(b"six")):
            await write_piece(writer, asked, received)
        writer.write(LAST)
        assert len(app.caches) == 2
        app.may_answer.set()
        answered = await reader.read()
    assert re.findall(rb"\|(?:two|six)|/last", answered) == [b"|two", b"|six", b"/last"]


async def test_line_ends_between_requests_do_not_extend_keep_alive(
    received: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "KEEP_ALIVE_S", IDLE_S)
    async with (
        serving(App()) as listener,
        asyncio.timeout(WITHIN_S),
        connect(listener) as (reader, writer),
    ):
        await ask(reader, writer, GET)
        await ask(reader, writer, GET)
        await write_piece(writer, b"\r\n", received)
        assert await reader.read() == b""


@pytest.mark.parametrize("kind", APPS)
async def test_disconnect_during_a_request_with_a_cached_head_is_noticed(kind: type[App]) -> None:
    app = kind()
    async with serving(app) as listener, asyncio.timeout(WITHIN_S):
        async with connect(listener) as (reader, writer):
            await ask(reader, writer, GET)
            app.waits = True
            writer.write(GET)
            await wait_until(lambda: len(app.caches) == 2, WITHIN_S, "it is handled")
        await wait_until(lambda: app.left, WITHIN_S, "the disconnect is noticed")
    assert app.caches[0] is app.caches[1]


async def test_idle_connection_is_closed_after_its_last_response(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(server, "KEEP_ALIVE_S", IDLE_S)
    loop = asyncio.get_running_loop()
    async with (
        serving(App()) as listener,
        asyncio.timeout(WITHIN_S),
        connect(listener) as (reader, writer),
    ):
        began_s = loop.time()
        while loop.time() < began_s + 2 * IDLE_S:
            await ask(reader, writer, GET)
        last_s = loop.time()
        assert await reader.read() == b""
        assert loop.time() - last_s > IDLE_S / 2


async def test_application_that_caches_a_head_handles_its_further_requests() -> None:
    app = CachingApp()
    async with serving(app) as listener, asyncio.timeout(WITHIN_S), connect(listener) as ends:
        for asked in (GET, GET, post(b"one"), post(b"two")):
            await ask(*ends, asked)
    assert len(app.caches) == 4
    assert len(app.known) == 2


async def test_exception_in_a_request_with_a_cached_head_is_a_500_and_closes() -> None:
    app = CachingApp()
    async with (
        serving(app) as listener,
        asyncio.timeout(WITHIN_S),
        connect(listener) as (reader, writer),
    ):
        await ask(reader, writer, GET)
        app.fails = True
        writer.write(GET)
        answered = await reader.read()
    assert answered.startswith(b"HTTP/1.1 500 ")
    assert b"connection: close" in answered


async def test_shutdown_closes_after_the_response_to_a_request_with_a_cached_head() -> None:
    app, listener, stop = CachingApp(), server.bind("127.0.0.1", 0), asyncio.Event()
    stopping = asyncio.create_task(server.Server(app, listener).serve(stop))
    async with asyncio.timeout(WITHIN_S), connect(listener) as (reader, writer):
        await ask(reader, writer, GET)
        app.may_answer.clear()
        writer.write(GET)
        await wait_until(lambda: app.known, WITHIN_S, "it is handled")
        request = app.known[0]()
        stop.set()
        await wait_until(lambda: not request.keep_alive, WITHIN_S, "the connection stops")
        app.may_answer.set()
        answered = await reader.read()
        await stopping
    assert answered.startswith(b"HTTP/1.1 200 ")
    assert b"connection: close" in answered


async def test_finished_request_with_a_cached_head_is_freed_without_garbage_collection() -> None:
    app = CachingApp()
    gc.disable()
    try:
        async with serving(app) as listener, asyncio.timeout(WITHIN_S), connect(listener) as ends:
            for _ in range(9):
                await ask(*ends, post(b"one"))
            assert len(app.known) == 8
            assert [request() for request in app.known[:-1]] == [None] * 7
    finally:
        gc.enable()


PREVIOUS_BODY: Final[ContextVar[bytes]] = ContextVar("previous_body", default=b"nothing")


class ContextApp(App):
    """Responds with a context variable, and then sets it to the body of the request."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        body = await read(receive)
        response = PREVIOUS_BODY.get()
        PREVIOUS_BODY.set(body)
        await HttpReply(200, response, "text/plain").write(send)


async def test_queued_request_does_not_see_the_context_of_the_previous_one() -> None:
    async with (
        serving(ContextApp()) as listener,
        asyncio.timeout(WITHIN_S),
        connect(listener) as (reader, writer),
    ):
        writer.write(post(b"one") + post(b"two") + post(b"three"))
        answers = [await ask(reader, writer, b"") for _ in range(3)]
        answers.append(await ask(reader, writer, post(b"four")))
        answers.append(await ask(reader, writer, post(b"five")))
    assert answers == [b"nothing"] * 5


class SyncApp(CachingApp):
    """Handles a cached head synchronously, in the callback that read it."""

    def begin(
        self, extensions: ServerExtensions, body: bytes, _receive: Receive, _send: Send
    ) -> bool:
        return extensions.write_at_once(200, b"content-type: text/plain\r\n", body)


@pytest.mark.parametrize("kind", [*APPS, SyncApp])
async def test_closed_connection_is_freed_without_garbage_collection(
    kind: type[App], monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[weakref.ref[KnownHeads]] = []
    real = KnownHeads.connection_made

    def note(self: KnownHeads, transport: asyncio.Transport) -> None:
        real(self, transport)
        if self.client is not None:  # None in the self-test of the server
            made.append(weakref.ref(self))

    monkeypatch.setattr(KnownHeads, "connection_made", note)
    gc.disable()
    try:
        async with serving(kind()) as listener, asyncio.timeout(WITHIN_S):
            for requests in (1, 3):
                async with connect(listener) as ends:
                    for _ in range(requests):
                        await ask(*ends, GET)
        assert [connection() for connection in made] == [None] * 2
    finally:
        gc.enable()


class StreamingApp(CachingApp):
    """Takes the body, then waits for the disconnect message."""

    async def serve(
        self, extensions: ServerExtensions, scope: Scope, receive: Receive, send: Send
    ) -> None:
        self.caches.append(extensions.kept)
        body = extensions.take_body()
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": body or b"", "more_body": True})
        if self.waits:
            assert (await receive())["type"] == "http.disconnect"
            self.left += 1
        else:
            await send({"type": "http.response.body"})


class EndlessApp(CachingApp):
    """Streams chunks while ``waits`` is set, then a last one."""

    async def serve(
        self, extensions: ServerExtensions, scope: Scope, receive: Receive, send: Send
    ) -> None:
        self.caches.append(extensions.kept)
        extensions.take_body()
        await send({"type": "http.response.start", "status": 200, "headers": []})
        while self.waits:
            await send({"type": "http.response.body", "body": b"more", "more_body": True})
            await asyncio.sleep(0)
        await send({"type": "http.response.body", "body": b"the last"})


async def test_nothing_is_sent_to_a_disconnected_caller_with_another_request_queued(
    received: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    app, lost = EndlessApp(), list[KnownHeads]()
    real = KnownHeads.connection_lost

    def note(self: KnownHeads, exc: Exception | None) -> None:
        real(self, exc)
        if self.client is not None:  # None in the self-test of the server
            lost.append(self)

    monkeypatch.setattr(KnownHeads, "connection_lost", note)
    async with serving(app) as listener, asyncio.timeout(WITHIN_S):
        async with connect(listener) as (reader, writer):
            writer.write(GET)
            await reader.readuntil(b"0\r\n\r\n")
            app.waits = True
            writer.write(GET)
            await wait_until(lambda: len(app.known) == 1, WITHIN_S, "it is handled")
            await write_piece(writer, HEAD, received)
            writer.transport.abort()
        await wait_until(lambda: lost, WITHIN_S, "the connection has ended")
        # The event loop of the gateway raises on writes to a closed connection.
        assert app.known[0]().disconnected
        app.waits = False
        await wait_until(lambda: not lost[0].tasks, WITHIN_S, "nothing is handled")
    assert len(app.caches) == 2


async def test_request_with_a_cached_head_is_streamed_and_its_disconnect_noticed() -> None:
    app = StreamingApp()
    async with serving(app) as listener, asyncio.timeout(WITHIN_S):
        async with connect(listener) as (reader, writer):
            for body in (b"one", b"two"):
                writer.write(post(body))
                assert (await reader.readuntil(b"0\r\n\r\n")).endswith(
                    b"transfer-encoding: chunked\r\n\r\n3\r\n" + body + b"\r\n0\r\n\r\n"
                )
            app.waits = True
            writer.write(post(b"six"))
            await reader.readuntil(b"six")
        await wait_until(lambda: app.left, WITHIN_S, "the disconnect is noticed")
    assert len(app.known) == 2
