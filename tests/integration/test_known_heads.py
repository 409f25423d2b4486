"""Requests whose head was read before are served as all others are, however their bytes come in."""

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
    """Answers with what it was asked; ``kept`` is what the server kept of each head."""

    takes: bool = True
    """Whether a body that is here is taken without a message."""
    waits: bool = False
    """Whether nothing is answered until the caller has left."""
    may_answer: asyncio.Event = field(default_factory=asyncio.Event)
    kept: list[HeadCache] = field(default_factory=list[HeadCache])
    left: int = 0

    def __post_init__(self) -> None:
        self.may_answer.set()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        offer = find_server_extensions(scope)
        assert offer
        await self.serve(offer, scope, receive, send)

    async def serve(
        self, offer: ServerExtensions, scope: Scope, receive: Receive, send: Send
    ) -> None:
        self.kept.append(offer.kept)
        body = offer.take_body() if self.takes else None
        if body is None:
            body = await read(receive)
        if self.waits:
            gone = asyncio.Event()
            unwatch = offer.watch(gone.set)
            await gone.wait()
            unwatch()
            self.left += 1
            return
        await self.may_answer.wait()
        names = [f"{name.decode()}={value.decode()}" for name, value in scope["headers"]]
        parts = (scope["method"], scope["path"], scope["query_string"].decode(), *names)
        reply = HttpReply(200, "|".join(parts).encode() + b"|" + body, "text/plain")
        if not reply.write_at_once(offer):
            await reply.write(send, head_only=scope["method"] == "HEAD")


@dataclass
class Keeping(App):
    """Serves a known head as the face does, without being called for it.

    ``known`` has a weak reference to each request that was served so.
    """

    known: list[Callable[[], Any]] = field(default_factory=list[Callable[[], Any]])
    fails: bool = False
    """Whether a request with a known head has no answer, by a fault."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        offer = find_server_extensions(scope)
        assert offer
        assert offer.kept.parsed is None
        offer.kept.parsed = cast("ParsedHead", self)
        await self.serve(offer, scope, receive, send)

    @property
    def handle_sync(self) -> SyncHandler:
        return self.begin

    def begin(self, offer: ServerExtensions, body: bytes, _receive: Receive, _send: Send) -> bool:
        return False

    @property
    def handle_async(self) -> AsyncHandler:
        return self.note

    async def note(
        self, offer: ServerExtensions, scope: Scope, receive: Receive, send: Send
    ) -> None:
        self.known.append(weakref.ref(offer))
        if self.fails:
            raise LookupError
        await self.serve(offer, scope, receive, send)


APPS: Final = (App, Keeping)


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
    """The body of the answer to one request."""
    writer.write(asked)
    head = await reader.readuntil(b"\r\n\r\n")
    length = re.search(rb"content-length: ([0-9]+)", head)
    assert length
    return b"" if asked.startswith(b"HEAD") else await reader.readexactly(int(length[1]))


@pytest.fixture
def came(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The lengths of what the server has read."""
    lengths: list[int] = []
    real = KnownHeads.data_received

    def note(self: KnownHeads, data: bytes) -> None:
        if self.client is not None:  # as on the trial of a server
            lengths.append(len(data))
        real(self, data)

    monkeypatch.setattr(KnownHeads, "data_received", note)
    return lengths


async def hand_over(writer: asyncio.StreamWriter, piece: bytes, came: list[int]) -> None:
    """Returns when the server has read it, so that it came in by itself."""
    wanted = sum(came) + len(piece)
    writer.write(piece)
    await wait_until(lambda: sum(came) == wanted, WITHIN_S, "the piece is read")


@pytest.mark.parametrize("kind", APPS)
@pytest.mark.parametrize("takes", [True, False])
async def test_head_that_comes_again_is_read_once(kind: type[App], *, takes: bool) -> None:
    app = kind(takes)
    async with serving(app) as listener, asyncio.timeout(WITHIN_S), connect(listener) as ends:
        for body in (b"one", b"two", b"six"):
            shown = b"POST|/a||host=x|content-length=3|" + body
            assert await ask(*ends, post(body)) == shown
    assert app.kept == [app.kept[0]] * 3


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
async def test_head_that_is_another_or_says_more_is_read(first: bytes, second: bytes) -> None:
    app = App()
    async with serving(app) as listener, asyncio.timeout(WITHIN_S), connect(listener) as ends:
        for asked in (first, second):
            await ask(*ends, asked)
    assert app.kept[0] is not app.kept[1]


async def test_head_is_known_on_its_own_connection_only() -> None:
    app = App()
    async with serving(app) as listener, asyncio.timeout(WITHIN_S):
        for _ in range(2):
            async with connect(listener) as ends:
                await ask(*ends, GET)
    assert app.kept[0] is not app.kept[1]


def cut(asked: bytes, chance: random.Random) -> Iterable[bytes]:
    """Pieces of all lengths; about every second one ends where a request does."""
    ends = [match.start() for match in re.finditer(rb"(?:POST|GET|HEAD) ", asked)][1:]
    marks = {0, len(asked)}
    for _ in range(chance.randrange(24)):
        at_end = chance.random() < 0.5
        marks.add(chance.choice(ends) if at_end else chance.randrange(len(asked)))
    return (asked[begin:end] for begin, end in pairwise(sorted(marks)))


@pytest.mark.parametrize("takes", [True, False])
@pytest.mark.parametrize("kind", APPS)
@pytest.mark.parametrize("seed", range(12))
async def test_answers_are_those_of_heads_that_are_always_read(
    seed: int,
    kind: type[App],
    came: list[int],
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
        came.clear()
        async with serving(kind(takes)) as listener, connect(listener) as (reader, writer):
            for piece in pieces:
                await hand_over(writer, piece, came)
            return re.sub(rb"date: [^\r]+", b"", await reader.read())

    known = await answer()

    def forget(_self: KnownHeads, _data: bytes) -> None:
        return None

    monkeypatch.setattr(KnownHeads, "_make_known_head", forget)
    assert known == await answer()
    assert known.count(b"HTTP/1.1 200 OK") == 17


@pytest.mark.parametrize("kind", APPS)
async def test_known_head_waits_for_the_answer_before_it(kind: type[App], came: list[int]) -> None:
    app = kind()
    async with serving(app) as listener, asyncio.timeout(WITHIN_S), connect(listener) as ends:
        await ask(*ends, post(b"one"))
        app.may_answer.clear()
        reader, writer = ends
        for asked in (post(b"two"), post(b"six")):
            await hand_over(writer, asked, came)
        writer.write(LAST)
        assert len(app.kept) == 2
        app.may_answer.set()
        answered = await reader.read()
    assert re.findall(rb"\|(?:two|six)|/last", answered) == [b"|two", b"|six", b"/last"]


async def test_line_ends_between_requests_are_no_sign_of_life(
    came: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "KEEP_ALIVE_S", IDLE_S)
    async with (
        serving(App()) as listener,
        asyncio.timeout(WITHIN_S),
        connect(listener) as (reader, writer),
    ):
        await ask(reader, writer, GET)
        await ask(reader, writer, GET)
        await hand_over(writer, b"\r\n", came)
        assert await reader.read() == b""


@pytest.mark.parametrize("kind", APPS)
async def test_caller_of_a_known_head_that_leaves_is_noticed(kind: type[App]) -> None:
    app = kind()
    async with serving(app) as listener, asyncio.timeout(WITHIN_S):
        async with connect(listener) as (reader, writer):
            await ask(reader, writer, GET)
            app.waits = True
            writer.write(GET)
            await wait_until(lambda: len(app.kept) == 2, WITHIN_S, "it is served")
        await wait_until(lambda: app.left, WITHIN_S, "it is told")
    assert app.kept[0] is app.kept[1]


async def test_connection_is_closed_when_its_last_answer_is_old(
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


async def test_application_that_keeps_a_head_is_given_its_further_requests() -> None:
    app = Keeping()
    async with serving(app) as listener, asyncio.timeout(WITHIN_S), connect(listener) as ends:
        for asked in (GET, GET, post(b"one"), post(b"two")):
            await ask(*ends, asked)
    assert len(app.kept) == 4
    assert len(app.known) == 2


async def test_fault_of_a_known_request_is_answered_and_closes_the_connection() -> None:
    app = Keeping()
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


async def test_server_that_stops_closes_after_the_answer_of_a_known_request() -> None:
    app, listener, stop = Keeping(), server.bind("127.0.0.1", 0), asyncio.Event()
    stopping = asyncio.create_task(server.Server(app, listener).serve(stop))
    async with asyncio.timeout(WITHIN_S), connect(listener) as (reader, writer):
        await ask(reader, writer, GET)
        app.may_answer.clear()
        writer.write(GET)
        await wait_until(lambda: app.known, WITHIN_S, "it is served")
        request = app.known[0]()
        stop.set()
        await wait_until(lambda: not request.keep_alive, WITHIN_S, "its connection is told")
        app.may_answer.set()
        answered = await reader.read()
        await stopping
    assert answered.startswith(b"HTTP/1.1 200 ")
    assert b"connection: close" in answered


async def test_known_request_that_was_answered_goes_without_the_cycle_collector() -> None:
    app = Keeping()
    gc.disable()
    try:
        async with serving(app) as listener, asyncio.timeout(WITHIN_S), connect(listener) as ends:
            for _ in range(9):
                await ask(*ends, post(b"one"))
            assert len(app.known) == 8
            assert [request() for request in app.known[:-1]] == [None] * 7
    finally:
        gc.enable()


SHOWN: Final[ContextVar[bytes]] = ContextVar("shown", default=b"nothing")


class Showing(App):
    """Answers with what was shown before in its context, and shows its own body from then on."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        body = await read(receive)
        shown = SHOWN.get()
        SHOWN.set(body)
        await HttpReply(200, shown, "text/plain").write(send)


async def test_request_behind_another_one_sees_nothing_of_what_that_one_has_shown() -> None:
    async with (
        serving(Showing()) as listener,
        asyncio.timeout(WITHIN_S),
        connect(listener) as (reader, writer),
    ):
        writer.write(post(b"one") + post(b"two") + post(b"three"))
        answers = [await ask(reader, writer, b"") for _ in range(3)]
        answers.append(await ask(reader, writer, post(b"four")))
        answers.append(await ask(reader, writer, post(b"five")))
    assert answers == [b"nothing"] * 5


class Beginning(Keeping):
    """Answers a known head in the callback that read it."""

    def begin(self, offer: ServerExtensions, body: bytes, _receive: Receive, _send: Send) -> bool:
        return offer.write_at_once(200, b"content-type: text/plain\r\n", body)


@pytest.mark.parametrize("kind", [*APPS, Beginning])
async def test_connection_that_was_closed_goes_without_the_cycle_collector(
    kind: type[App], monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[weakref.ref[KnownHeads]] = []
    real = KnownHeads.connection_made

    def note(self: KnownHeads, transport: asyncio.Transport) -> None:
        real(self, transport)
        if self.client is not None:  # as on the trial of a server
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


class Streaming(Keeping):
    """Takes the body, then tells by messages when its caller has left."""

    async def serve(
        self, offer: ServerExtensions, scope: Scope, receive: Receive, send: Send
    ) -> None:
        self.kept.append(offer.kept)
        body = offer.take_body()
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": body or b"", "more_body": True})
        if self.waits:
            assert (await receive())["type"] == "http.disconnect"
            self.left += 1
        else:
            await send({"type": "http.response.body"})


class Telling(Keeping):
    """Tells on and on while it waits, then once more."""

    async def serve(
        self, offer: ServerExtensions, scope: Scope, receive: Receive, send: Send
    ) -> None:
        self.kept.append(offer.kept)
        offer.take_body()
        await send({"type": "http.response.start", "status": 200, "headers": []})
        while self.waits:
            await send({"type": "http.response.body", "body": b"more", "more_body": True})
            await asyncio.sleep(0)
        await send({"type": "http.response.body", "body": b"the last"})


async def test_caller_of_a_known_head_that_leaves_with_another_request_waiting_is_told_no_more(
    came: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    app, lost = Telling(), list[KnownHeads]()
    real = KnownHeads.connection_lost

    def note(self: KnownHeads, exc: Exception | None) -> None:
        real(self, exc)
        if self.client is not None:  # as on the trial of a server
            lost.append(self)

    monkeypatch.setattr(KnownHeads, "connection_lost", note)
    async with serving(app) as listener, asyncio.timeout(WITHIN_S):
        async with connect(listener) as (reader, writer):
            writer.write(GET)
            await reader.readuntil(b"0\r\n\r\n")
            app.waits = True
            writer.write(GET)
            await wait_until(lambda: len(app.known) == 1, WITHIN_S, "it is served")
            await hand_over(writer, HEAD, came)
            writer.transport.abort()
        await wait_until(lambda: lost, WITHIN_S, "the connection has ended")
        # The loop of the product raises where something is written to a connection that has ended.
        assert app.known[0]().disconnected
        app.waits = False
        await wait_until(lambda: not lost[0].tasks, WITHIN_S, "nothing is served")
    assert len(app.kept) == 2


async def test_known_request_is_answered_by_messages_and_its_caller_heard_to_leave() -> None:
    app = Streaming()
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
        await wait_until(lambda: app.left, WITHIN_S, "it is told")
    assert len(app.known) == 2
