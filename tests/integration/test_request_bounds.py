"""Requests that never end: bounded before anybody asks who sends them."""

import asyncio
import contextlib

import pytest
import websockets
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.routing import Route, WebSocketRoute
from starlette.types import Receive, Scope, Send
from starlette.websockets import WebSocket

from passerelle.gateway.request_bounds import HEAD_BYTES, BoundedRequests
from passerelle.gateway.server import Listener
from tests.support.serving import serving

WITHIN_S = 10.0
HEAD = b"POST / HTTP/1.1\r\nHost: x\r\n"


async def measure(request: Request) -> PlainTextResponse:
    return PlainTextResponse(str(len(await request.body())))


async def echo(socket: WebSocket) -> None:
    await socket.accept()
    async for text in socket.iter_text():
        await socket.send_text(text)


APP = Starlette(routes=[Route("/", measure, methods=["POST"]), WebSocketRoute("/socket", echo)])


async def ask(listener: Listener, *pieces: bytes) -> bytes:
    """Sends, and reads until the server closes the connection."""
    async with asyncio.timeout(WITHIN_S):
        reader, writer = await asyncio.open_connection("127.0.0.1", listener.port)
        try:
            for piece in pieces:
                writer.write(piece)
                await writer.drain()
            return await reader.read()
        finally:
            writer.close()


@pytest.mark.anyio
@pytest.mark.parametrize(
    "pieces",
    [
        (HEAD, b"X: " + b"a" * HEAD_BYTES),
        (HEAD, b"X: a\r\n" * (HEAD_BYTES // 6)),
        (b"POST /" + b"a" * HEAD_BYTES + b"a" * len(HEAD),),
    ],
)
async def test_head_that_does_not_end_is_refused(pieces: tuple[bytes, ...]) -> None:
    async with serving(APP) as listener:
        assert (await ask(listener, *pieces)).startswith(b"HTTP/1.1 431 ")


@pytest.mark.anyio
@pytest.mark.parametrize("size", [HEAD_BYTES + 4_000, HEAD_BYTES * 3 // 2, HEAD_BYTES * 3])
@pytest.mark.parametrize("before", [b"", HEAD + b"Content-Length: 1\r\n\r\na"])
@pytest.mark.parametrize("behind", [b"", b"b" * 100_000])
@pytest.mark.parametrize("line", [b"X: %b\r\n", b"%b: x\r\n"])
async def test_head_is_as_large_as_it_is_however_it_comes(
    size: int, before: bytes, behind: bytes, line: bytes
) -> None:
    """In one piece with its body, or with the request before it (L2)."""
    served: list[int] = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        served.append(sum(len(name) + len(text) for name, text in scope["headers"]))
        await APP(scope, receive, send)

    length = b"Content-Length: %d\r\n" % len(behind)
    whole = before + HEAD + length + line % (b"a" * size) + b"\r\n" + behind
    async with serving(app) as listener:
        # Where it closes before all is read, the system may drop what it has said.
        with contextlib.suppress(ConnectionResetError):
            assert b"HTTP/1.1 431 " in await ask(listener, whole)
    assert len(served) == bool(before)
    assert sum(served) < HEAD_BYTES


@pytest.mark.anyio
async def test_body_is_no_part_of_the_head_before_it() -> None:
    head = HEAD + b"X: %b\r\n" % (b"a" * (HEAD_BYTES // 2))
    body = b"b" * HEAD_BYTES
    length = b"Connection: close\r\nContent-Length: %d\r\n\r\n" % len(body)
    async with serving(APP) as listener:
        answer = await ask(listener, head, length + body)
    assert answer.startswith(b"HTTP/1.1 200 ")


@pytest.mark.anyio
async def test_trailer_that_does_not_end_closes_the_connection() -> None:
    chunked = HEAD + b"Transfer-Encoding: chunked\r\n\r\n1\r\na\r\n0\r\n"
    async with serving(APP) as listener:
        answer = await ask(listener, chunked, b"X: " + b"a" * HEAD_BYTES)
    assert answer.startswith(b"HTTP/1.1 431 ")


@pytest.mark.anyio
@pytest.mark.parametrize("started", [b"P", HEAD, HEAD + b"Content-Length: 9\r\n\r\nshort"])
async def test_request_that_does_not_go_on_is_refused(
    started: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(BoundedRequests, "head_s", 0.2)
    monkeypatch.setattr(BoundedRequests, "body_s", 0.2)
    async with serving(APP) as listener:
        assert (await ask(listener, started)).startswith(b"HTTP/1.1 408 ")


@pytest.mark.anyio
async def test_connection_without_a_request_is_closed_without_a_word(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(BoundedRequests, "head_s", 0.2)
    async with serving(APP) as listener:
        assert await ask(listener) == b""


@pytest.mark.anyio
async def test_large_bodies_and_many_requests_on_one_connection_are_no_head() -> None:
    size = HEAD_BYTES * 4
    whole = HEAD + f"Content-Length: {size}\r\n\r\n".encode() + b"a" * size
    chunk = f"{size:x}\r\n".encode() + b"a" * size + b"\r\n0\r\n\r\n"
    last = HEAD + b"Connection: close\r\nTransfer-Encoding: chunked\r\n\r\n" + chunk
    async with serving(APP) as listener:
        answers = await ask(listener, *[whole] * 3, last)
    assert answers.count(b"HTTP/1.1 200 ") == 4
    assert answers.count(str(size).encode()) == 4


@pytest.mark.anyio
async def test_socket_lives_longer_than_a_request_may_take_to_come(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(BoundedRequests, "head_s", 0.2)
    monkeypatch.setattr(BoundedRequests, "body_s", 0.2)
    async with serving(APP) as listener:
        url = f"ws://127.0.0.1:{listener.port}/socket"
        async with websockets.connect(url, proxy=None) as socket:
            # Closed for its silence while the socket is open: so more than the time of a head has passed.
            assert await ask(listener) == b""
            assert await ask(listener) == b""
            await socket.send("here")
            assert await asyncio.wait_for(socket.recv(), WITHIN_S) == "here"
