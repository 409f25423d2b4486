"""Requests whose head was read before are served as all others are, however their bytes come in."""

import asyncio
import random  # noqa: TID251  seeded
import re
from collections.abc import AsyncGenerator, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Final

import pytest
from starlette.types import Receive, Scope, Send

from passerelle.gateway import server
from passerelle.gateway.a2a.offer import Kept, find_offer
from passerelle.gateway.a2a.reply import Reply
from passerelle.gateway.known_heads import KnownHeads
from passerelle.gateway.server import Listener
from tests.support.serving import serving
from tests.support.waiting import wait_until

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
    kept: list[Kept] = field(default_factory=list[Kept])
    left: int = 0

    def __post_init__(self) -> None:
        self.may_answer.set()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        offer = find_offer(scope)
        assert offer
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
        reply = Reply(200, "|".join(parts).encode() + b"|" + body, "text/plain")
        await reply.write(send, head_only=scope["method"] == "HEAD", offer=offer)


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
        lengths.append(len(data))
        real(self, data)

    monkeypatch.setattr(KnownHeads, "data_received", note)
    return lengths


async def hand_over(writer: asyncio.StreamWriter, piece: bytes, came: list[int]) -> None:
    """Returns when the server has read it, so that it came in by itself."""
    wanted = sum(came) + len(piece)
    writer.write(piece)
    await wait_until(lambda: sum(came) == wanted, WITHIN_S, "the piece is read")


@pytest.mark.parametrize("takes", [True, False])
async def test_head_that_comes_again_is_read_once(*, takes: bool) -> None:
    app = App(takes)
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


@pytest.mark.parametrize("seed", range(24))
async def test_answers_are_those_of_heads_that_are_always_read(
    seed: int, came: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    chance = random.Random(seed)  # noqa: S311  a seed that can be repeated
    kinds = [post(b"one"), post(b"two"), post(b"three", path="/b"), GET, HEAD, CHUNKED, post(b"")]
    kinds += [post(b"one") + b"\r\n", post(b"one\r\n"), b"\r\n" + GET]
    some = chance.sample(kinds, 3)
    asked = b"".join(chance.choice(some) for _ in range(16)) + LAST
    pieces = list(cut(asked, chance))

    async def answer() -> bytes:
        came.clear()
        async with serving(App()) as listener, connect(listener) as (reader, writer):
            for piece in pieces:
                await hand_over(writer, piece, came)
            return re.sub(rb"date: [^\r]+", b"", await reader.read())

    known = await answer()

    def forget(_self: KnownHeads, _data: bytes) -> None:
        return None

    monkeypatch.setattr(KnownHeads, "_learn", forget)
    assert known == await answer()
    assert known.count(b"HTTP/1.1 200 OK") == 17


async def test_known_head_waits_for_the_answer_before_it(came: list[int]) -> None:
    app = App()
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


async def test_caller_of_a_known_head_that_leaves_is_noticed() -> None:
    app = App()
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
