"""The picows back-end's own protocol handling: fragments, closing handshake, HTTP answers, limits."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass

import orjson
import pytest
from starlette.types import Scope

from passerelle.channels.connection import ChannelConnection
from passerelle.channels.endpoint import ChannelEndpoint
from passerelle.channels.fast import FastListener
from passerelle.channels.limits import ChannelLimits
from passerelle.channels.story import LinkEnded
from passerelle.channels.transport import Socket
from passerelle.core.credentials import Credentials
from passerelle.core.principal import Principal
from passerelle.protocol.frames import SUBPROTOCOL
from passerelle.store.store import Store
from tests.integration.channels.rig import (
    OVER_BOTH,
    BackEnd,
    KnownTokens,
    Rig,
    run_endpoint,
    serve,
)
from tests.support.waiting import wait_until

pytestmark = pytest.mark.anyio

PATH = "/v1/channel"
TEXT, CONTINUATION, BINARY, CLOSE, PING, PONG = 0x1, 0x0, 0x2, 0x8, 0x9, 0xA
UPGRADE = (
    "Upgrade: websocket",
    "Connection: Upgrade",
    "Sec-WebSocket-Version: 13",
    "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==",
    f"Sec-WebSocket-Protocol: other, {SUBPROTOCOL}",
)
HELLO = orjson.dumps(
    {
        "t": "hello",
        "v": 1,
        "token": "ada-token",
        "device": "phone",
        "role": "ui",
        "sdk": "t",
        "caps": [],
        "subs": [],
    }
)


@dataclass
class Bare:
    """A WebSocket byte for byte; frames are masked with zeroes and so readable."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    def send(self, kind: int, data: bytes, *, last: bool = True, bits: int = 0) -> None:
        size = len(data)
        length = bytes([0x80 | size]) if size < 126 else b"\xfe" + size.to_bytes(2)
        first = (0x80 if last else 0) | bits | kind
        self.writer.write(bytes([first]) + length + bytes(4) + data)

    async def receive(self) -> tuple[int, bytes]:
        async with asyncio.timeout(10):
            first, size = await self.reader.readexactly(2)
            if size > 125:
                size = int.from_bytes(await self.reader.readexactly(2 if size == 126 else 8))
            return first & 0xF, await self.reader.readexactly(size)

    async def expect(self, kind: int) -> bytes:
        while (received := await self.receive())[0] != kind:
            pass
        return received[1]

    async def expect_close(self) -> int:
        return int.from_bytes((await self.expect(CLOSE))[:2])

    async def is_ended(self) -> bool:
        async with asyncio.timeout(10):
            return await self.reader.read() == b""


@asynccontextmanager
async def connect(port: int, *lines: str, path: str = PATH) -> AsyncGenerator[tuple[Bare, bytes]]:
    """Yields a socket and the response to its handshake."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    wanted = lines or UPGRADE
    writer.write("\r\n".join([f"GET {path} HTTP/1.1", "Host: here", *wanted, "", ""]).encode())
    try:
        async with asyncio.timeout(10):
            answer = await reader.readuntil(b"\r\n\r\n")
        yield Bare(reader, writer), answer
    finally:
        writer.close()


@asynccontextmanager
async def greeted(store: Store, limits: ChannelLimits | None = None) -> AsyncGenerator[Bare]:
    async with serve(store, limits, backend="fast") as rig, connect(rig.port) as (bare, answer):
        assert f"Sec-WebSocket-Protocol: {SUBPROTOCOL}\r\n".encode() in answer
        bare.send(TEXT, HELLO)
        assert b'"welcome"' in await bare.expect(TEXT)
        yield bare


async def test_a_fragmented_message_with_a_ping_in_between_is_one_message(store: Store) -> None:
    async with greeted(store) as bare:
        bare.send(TEXT, b'{"t":"hb",', last=False)
        bare.send(PING, b"there?")
        bare.send(CONTINUATION, b'"n"', last=False)
        bare.send(CONTINUATION, b":7}")
        assert await bare.receive() == (PONG, b"there?")
        assert orjson.loads(await bare.expect(TEXT)) == {"t": "hb", "n": 7}


@pytest.mark.parametrize(
    ("frames", "code"),
    [
        ([(CONTINUATION, b"{}", True, 0)], 1002),
        ([(TEXT, b"{", False, 0), (TEXT, b"{}", True, 0)], 1002),
        ([(TEXT, b"{}", True, 0x40)], 1002),
        ([(TEXT, b"\xff\xfe", True, 0)], 1007),
        ([(TEXT, b"x" * 30_000, False, 0), (CONTINUATION, b"x" * 30_000, False, 0)] * 2, 1002),
        ([(TEXT, b"\xc3", False, 0), (CONTINUATION, b"", True, 0)], 1007),
        ([(TEXT, b"{", False, 0), (BINARY, b"\x00", True, 0)], 1002),
        ([(BINARY, b"\x00", True, 0)], 4501),
        ([(BINARY, b"{", False, 0), (CONTINUATION, b"}", True, 0)], 4501),
    ],
)
async def test_a_websocket_protocol_error_closes_with_its_code(
    store: Store, frames: list[tuple[int, bytes, bool, int]], code: int
) -> None:
    async with greeted(store) as bare:
        for kind, data, last, bits in frames:
            bare.send(kind, data, last=last, bits=bits)
        assert await bare.expect_close() == code


async def test_a_too_large_message_closes_in_one_fragment_or_many(
    store: Store,
) -> None:
    async with serve(store, backend="fast") as rig:
        with socket.create_server(("127.0.0.1", 0)) as listener:
            port: int = listener.getsockname()[1]
            async with FastListener(rig.endpoint, listener, PATH, message_bytes=1_024):
                for part in (1_025, 600):
                    async with connect(port) as (bare, _):
                        bare.send(TEXT, b"x" * part, last=False)
                        bare.send(CONTINUATION, b"x" * part)
                        assert await bare.expect_close() == 1009


async def test_a_message_of_endless_empty_fragments_closes(store: Store) -> None:
    async with serve(store, backend="fast") as rig:
        with socket.create_server(("127.0.0.1", 0)) as listener:
            port: int = listener.getsockname()[1]
            async with (
                FastListener(rig.endpoint, listener, PATH, message_bytes=1_024),
                connect(port) as (bare, _),
            ):
                bare.send(TEXT, b"{", last=False)
                for _ in range(1_024 // 64):
                    bare.send(CONTINUATION, b"", last=False)
                assert await bare.expect_close() == 1009


async def test_a_close_is_answered_and_ends_the_socket(store: Store) -> None:
    async with greeted(store) as bare:
        bare.send(CLOSE, (1001).to_bytes(2))
        assert await bare.expect_close() == 1001
        assert await bare.is_ended()


async def test_a_close_of_the_server_waits_for_its_answer_and_accepts_nothing_more(
    store: Store,
) -> None:
    async with greeted(store) as bare:
        bare.send(TEXT, b"no frame")
        assert await bare.expect_close() == 4501
        bare.send(TEXT, b'{"t":"hb","n":1}')
        bare.send(CLOSE, (4501).to_bytes(2))
        assert await bare.is_ended()


@pytest.mark.parametrize(
    ("lines", "path", "status"),
    [
        (("Accept: text/html",), PATH, b"426"),
        ((), "/v1/other", b"404"),
        (
            ("Upgrade: websocket", "Connection: Upgrade", f"Sec-WebSocket-Protocol: {SUBPROTOCOL}"),
            PATH,
            b"400",
        ),
    ],
)
async def test_a_request_that_is_no_handshake_is_answered_in_http(
    store: Store, lines: tuple[str, ...], path: str, status: bytes
) -> None:
    async with (
        serve(store, backend="fast") as rig,
        connect(rig.port, *lines, path=path) as (bare, answer),
    ):
        assert answer.split(b" ")[1] == status
        if status == b"426":
            assert b"Upgrade: websocket\r\n" in answer
        await bare.reader.read()
    assert rig.endpoint.connections == 0


async def test_the_admission_check_gets_the_raw_header_bytes(store: Store) -> None:
    """A proxy writes certificate names in UTF-8."""
    seen: list[tuple[bytes, bytes]] = []

    def refuse(scope: Scope) -> bool:
        seen.extend(scope["headers"])
        return False

    async with serve(store, backend="fast") as rig:
        with socket.create_server(("127.0.0.1", 0)) as listener:
            port: int = listener.getsockname()[1]
            async with (
                FastListener(rig.endpoint, listener, PATH, admits=refuse),
                connect(port, *UPGRADE, "X-Client: CN=Jörg") as (_, answer),
            ):
                assert answer.split(b" ")[1] == b"403"
    assert (b"x-client", "CN=Jörg".encode()) in seen


@OVER_BOTH
@pytest.mark.requirement("CHN-4")
async def test_a_stalled_socket_is_closed_as_too_slow(store: Store, backend: BackEnd) -> None:
    limits = ChannelLimits(stall_s=0.2, replay_events=10_000, replay_bytes=1 << 30)
    async with serve(store, limits, backend=backend) as rig, connect(rig.port) as (bare, _):
        await follow_without_reading(rig, bare)
        await wait_until(lambda: rig.endpoint.connections == 0, 10, "the connection is given up")
        codes = [fact.code for fact in rig.links.facts if isinstance(fact, LinkEnded)]
        assert codes == [4008]


async def follow_without_reading(rig: Rig, bare: Bare) -> None:
    session = rig.make_session()
    await rig.append(session, 1)
    for _ in range(45):  # more than the kernel buffers for a loopback socket
        await rig.append(session, 15, size=16_000)
    wish = {"s": f"session:{session}", "from": "start", "max": 10_000}
    bare.send(TEXT, orjson.dumps({**orjson.loads(HELLO), "subs": [wish]}))
    bare.writer.transport.pause_reading()  # type: ignore[attr-defined] # pyright: ignore[reportAttributeAccessIssue, reportUnknownMemberType]


class Listening(ChannelEndpoint):
    """Keeps the socket of its connection."""

    socket: Socket | None = None

    def serve(self, socket: Socket, scope: Scope) -> ChannelConnection:
        self.socket = socket
        return super().serve(socket, scope)


@pytest.mark.parametrize("anyio_backend", [("asyncio", {"use_uvloop": True})])
async def test_messages_buffered_by_a_full_socket_arrive_unchanged(store: Store) -> None:
    """Over uvloop, whose sockets keep the buffers without a copy."""
    sent: list[bytes] = []
    async with serve(store, backend="fast") as rig:
        endpoint = Listening(rig.services)
        async with run_endpoint(endpoint, "fast") as port, connect(port) as (bare, _):
            bare.writer.transport.pause_reading()  # type: ignore[attr-defined] # pyright: ignore[reportAttributeAccessIssue, reportUnknownMemberType]
            socket = endpoint.socket
            assert socket is not None
            while socket.is_writable:
                sent.append(b"%d " % len(sent) * (3_000 + 7 * len(sent) % 500))
                socket.write(sent[-1])
            bare.writer.transport.resume_reading()  # type: ignore[attr-defined] # pyright: ignore[reportAttributeAccessIssue, reportUnknownMemberType]
            for message in sent:
                assert await bare.expect(TEXT) == message


class HeldTokens(KnownTokens):
    """Authenticates once ``answer`` is set."""

    def __init__(self) -> None:
        self.asked = asyncio.Event()
        self.answer = asyncio.Event()

    async def authenticate(self, credentials: Credentials) -> Principal:
        self.asked.set()
        await self.answer.wait()
        return await super().authenticate(credentials)


@OVER_BOTH
@pytest.mark.requirement("CHN-9")
async def test_a_socket_that_ends_before_its_admission_takes_no_channel_from_its_successor(
    store: Store, backend: BackEnd
) -> None:
    tokens = HeldTokens()
    async with serve(store, authenticator=tokens, backend=backend) as rig:
        async with connect(rig.port) as (bare, _):
            bare.send(TEXT, HELLO)
            async with asyncio.timeout(10):
                await tokens.asked.wait()
        await wait_until(lambda: rig.endpoint.connections == 0, 10, "its end is seen")
        tokens.answer.set()
        async with connect(rig.port) as (bare, _):
            bare.send(TEXT, HELLO)
            welcome = orjson.loads(await bare.expect(TEXT))
            assert await store.channels.read_generation(welcome["channel"]) == welcome["gen"]
