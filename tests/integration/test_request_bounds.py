"""Limits of unfinished requests, which apply before authentication."""

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
    """Sends the pieces, and reads until the server closes the connection."""
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
async def test_endless_head_is_refused(pieces: tuple[bytes, ...]) -> None:
    async with serving(APP) as listener:
        assert (await ask(listener, *pieces)).startswith(b"HTTP/1.1 431 ")


@pytest.mark.anyio
@pytest.mark.parametrize("size", [HEAD_BYTES + 4_000, HEAD_BYTES * 3 // 2, HEAD_BYTES * 3])
@pytest.mark.parametrize("before", [b"", HEAD + b"Content-Length: 1\r\n\r\na"])
@pytest.mark.parametrize("behind", [b"", b"b" * 100_000])
@pytest.mark.parametrize("line", [b"X: %b\r\n", b"%b: x\r\n"])
async def test_size_limit_of_a_head_does_not_depend_on_how_it_arrives(
    size: int, before: bytes, behind: bytes, line: bytes
) -> None:
    """In one piece with its body, or behind another request (L2)."""
    served: list[int] = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        served.append(sum(len(name) + len(text) for name, text in scope["headers"]))
        await APP(scope, receive, send)

    length = b"Content-Length: %d\r\n" % len(behind)
    message = before + HEAD + length + line % (b"a" * size) + b"\r\n" + behind
    async with serving(app) as listener:
        # If the server closes before it has read everything, the system may drop its response.
        with contextlib.suppress(ConnectionResetError):
            assert b"HTTP/1.1 431 " in await ask(listener, message)
    assert len(served) == bool(before)
    assert sum(served) < HEAD_BYTES


@pytest.mark.anyio
async def test_body_does_not_count_as_head() -> None:
    head = HEAD + b"X: %b\r\n" % (b"a" * (HEAD_BYTES // 2))
    body = b"b" * HEAD_BYTES
    length = b"Connection: close\r\nContent-Length: %d\r\n\r\n" % len(body)
    async with serving(APP) as listener:
        answer = await ask(listener, head, length + body)
    assert answer.startswith(b"HTTP/1.1 200 ")


@pytest.mark.anyio
async def test_endless_trailer_is_refused() -> None:
    chunked = HEAD + b"Transfer-Encoding: chunked\r\n\r\n1\r\na\r\n0\r\n"
    async with serving(APP) as listener:
        answer = await ask(listener, chunked, b"X: " + b"a" * HEAD_BYTES)
    assert answer.startswith(b"HTTP/1.1 431 ")


@pytest.mark.anyio
@pytest.mark.parametrize("started", [b"P", HEAD, HEAD + b"Content-Length: 9\r\n\r\nshort"])
async def test_stalled_request_is_refused(started: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(BoundedRequests, "head_s", 0.2)
    monkeypatch.setattr(BoundedRequests, "body_s", 0.2)
    async with serving(APP) as listener:
        assert (await ask(listener, started)).startswith(b"HTTP/1.1 408 ")


@pytest.mark.anyio
async def test_connection_without_a_request_is_closed_silently(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(BoundedRequests, "head_s", 0.2)
    async with serving(APP) as listener:
        assert await ask(listener) == b""


@pytest.mark.anyio
async def test_large_bodies_and_many_requests_on_a_connection_do_not_count_as_head() -> None:
    size = HEAD_BYTES * 4
    message = HEAD + f"Content-Length: {size}\r\n\r\n".encode() + b"a" * size
    chunk = f"{size:x}\r\n".encode() + b"a" * size + b"\r\n0\r\n\r\n"
    last = HEAD + b"Connection: close\r\nTransfer-Encoding: chunked\r\n\r\n" + chunk
    async with serving(APP) as listener:
        answers = await ask(listener, *[message] * 3, last)
    assert answers.count(b"HTTP/1.1 200 ") == 4
    assert answers.count(str(size).encode()) == 4


@pytest.mark.anyio
async def test_socket_outlives_the_time_limit_of_a_request(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(BoundedRequests, "head_s", 0.2)
    monkeypatch.setattr(BoundedRequests, "body_s", 0.2)
    async with serving(APP) as listener:
        url = f"ws://127.0.0.1:{listener.port}/socket"
        async with websockets.connect(url, proxy=None) as socket:
            # The idle connections are closed while the socket is open, so the time limit of a head has passed.
            assert await ask(listener) == b""
            assert await ask(listener) == b""
            await socket.send("here")
            assert await asyncio.wait_for(socket.recv(), WITHIN_S) == "here"
