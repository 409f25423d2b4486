"""Connection limit: unauthenticated connections are closed for new ones, active requests are not (M3)."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from ipaddress import ip_network
from typing import TYPE_CHECKING, Final

import pytest
import websockets

from passerelle.gateway.connections import ConnectionTable, note_authenticated
from passerelle.gateway.proxies import Proxies
from passerelle.gateway.server import Server, ServerAdmission, bind
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from starlette.types import Receive, Scope, Send

    from passerelle.gateway.server import Listener

pytestmark = pytest.mark.anyio
WITHIN_S: Final = 10.0
MOST: Final = 6
LOCAL: Final = Proxies([ip_network("127.0.0.0/8")], "X-Forwarded-For")
ASK: Final = b"GET /%b HTTP/1.1\r\nHost: x\r\n\r\n"


@dataclass
class App:
    """Authenticates each request under ``/known``; requests whose path ends in ``long`` wait."""

    may_answer: asyncio.Event = field(default_factory=asyncio.Event)
    begun: int = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["path"].startswith("/known"):
            note_authenticated()
        if scope["type"] == "websocket":
            await receive()
            await send({"type": "websocket.accept"})
            while (message := await receive())["type"] == "websocket.receive":
                await send({"type": "websocket.send", "text": message["text"]})
            return
        self.begun += 1
        if scope["path"].endswith("long"):
            await self.may_answer.wait()
        await send(
            {"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"2")]}
        )
        await send({"type": "http.response.body", "body": b"ok"})


@asynccontextmanager
async def serve(app: App, table: ConnectionTable) -> AsyncGenerator[Listener]:
    listener, stop = bind("127.0.0.1", 0), asyncio.Event()
    task = asyncio.create_task(Server(app, listener, admission=ServerAdmission(table)).serve(stop))
    try:
        yield listener
    finally:
        app.may_answer.set()
        stop.set()
        await task


class Client:
    """One connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    def ask(self, path: bytes) -> None:
        self.writer.write(ASK % path)

    def ask_for(self, address: bytes, path: bytes) -> None:
        """Sends a request as a proxy does."""
        line = b"X-Forwarded-For: 203.0.113.1, %b\r\n\r\n" % address
        self.writer.write((ASK % path)[:-2] + line)

    async def read(self) -> bytes:
        """The next response; empty after the connection has ended."""
        try:
            async with asyncio.timeout(WITHIN_S):
                head = await self.reader.readuntil(b"\r\n\r\n")
                return head if b" 503 " in head else head + await self.reader.readexactly(2)
        except (ConnectionResetError, asyncio.IncompleteReadError):
            return b""


@asynccontextmanager
async def connect(listener: Listener, count: int) -> AsyncGenerator[list[Client]]:
    async with AsyncExitStack() as stack:
        clients: list[Client] = []
        for _ in range(count):
            client = Client(*await asyncio.open_connection("127.0.0.1", listener.port))
            stack.callback(client.writer.transport.abort)
            clients.append(client)
        yield clients


@pytest.mark.parametrize("begun", [b"", b"GET /known HTTP/1.1\r\nHos"])
async def test_callers_are_served_while_unauthenticated_connections_reach_the_limit(
    begun: bytes,
) -> None:
    app, table = App(), ConnectionTable(MOST)
    async with serve(app, table) as listener, connect(listener, 5 * MOST) as silent:
        for client in silent:
            client.writer.write(begun)
        await wait_until(lambda: len(table) == MOST, WITHIN_S, "the limit is reached")
        async with connect(listener, MOST) as callers:
            for caller in callers:
                caller.ask(b"known")
                assert (await caller.read()).startswith(b"HTTP/1.1 200 ")
            for client in silent:
                assert await client.read() == b""
            for caller in callers:
                caller.ask(b"known")
                assert (await caller.read()).startswith(b"HTTP/1.1 200 ")
            assert len(table) == MOST


async def test_active_requests_stay_open_and_new_connections_get_503_at_the_limit() -> None:
    app, table = App(), ConnectionTable(MOST)
    async with serve(app, table) as listener:
        url = f"ws://127.0.0.1:{listener.port}/known/socket"
        async with (
            websockets.connect(url, proxy=None) as socket,
            connect(listener, MOST - 1) as callers,
        ):
            for caller in callers:
                caller.ask(b"known/long")
            await wait_until(lambda: app.begun == MOST - 1, WITHIN_S, "all of them are served")
            async with connect(listener, 3) as unauthenticated:
                for connection in unauthenticated:
                    assert b"HTTP/1.1 503 " in await connection.read()
            app.may_answer.set()
            for caller in callers:
                assert (await caller.read()).startswith(b"HTTP/1.1 200 ")
            async with connect(listener, 1) as newcomers:
                newcomers[0].ask(b"known")
                assert (await newcomers[0].read()).startswith(b"HTTP/1.1 200 ")
            await socket.send("here")
            assert await asyncio.wait_for(socket.recv(), WITHIN_S) == "here"
        await wait_until(lambda: len(table) == 0, WITHIN_S, "all connections are released")


async def test_unauthenticated_socket_is_closed_for_a_new_connection() -> None:
    app, table = App(), ConnectionTable(1)
    async with serve(app, table) as listener:
        url = f"ws://127.0.0.1:{listener.port}/strange"
        async with (
            websockets.connect(url, proxy=None) as socket,
            connect(listener, 1) as newcomers,
        ):
            newcomers[0].ask(b"known")
            assert (await newcomers[0].read()).startswith(b"HTTP/1.1 200 ")
            with pytest.raises(websockets.ConnectionClosed):
                await asyncio.wait_for(socket.recv(), WITHIN_S)


async def test_connections_of_a_proxy_are_limited_per_client() -> None:
    app, table = App(), ConnectionTable(10, 2, LOCAL)
    async with serve(app, table) as listener, connect(listener, 4) as reused:
        for turn in range(1, 3):
            # Connections of a proxy are reused for requests of all its clients in turn.
            for link in reused:
                link.ask_for(b"192.0.2.%d" % turn, b"known")
                assert (await link.read()).startswith(b"HTTP/1.1 200 ")
        for link in reused[:2]:
            link.ask_for(b"192.0.2.1", b"known/long")
        await wait_until(lambda: app.begun == 10, WITHIN_S, "both are served")
        for _ in range(2):
            reused[2].ask_for(b"192.0.2.1", b"known")
            refused = await reused[2].reader.readuntil(b"\r\n\r\n")
            assert refused.startswith(b"HTTP/1.1 429 ")
            assert b"retry-after: 5\r\n" in refused
        reused[2].ask_for(b"192.0.2.2", b"known")
        assert (await reused[2].read()).startswith(b"HTTP/1.1 200 ")
        app.may_answer.set()
        for link in reused[:2]:
            assert (await link.read()).startswith(b"HTTP/1.1 200 ")
        reused[3].ask_for(b"192.0.2.1", b"known")
        assert (await reused[3].read()).startswith(b"HTTP/1.1 200 ")
        assert app.begun == 12


async def test_sockets_of_a_client_behind_a_proxy_count_until_they_end() -> None:
    app, table = App(), ConnectionTable(10, 1, LOCAL)
    async with serve(app, table) as listener:
        url = f"ws://127.0.0.1:{listener.port}/known/socket"
        mine = {"X-Forwarded-For": "192.0.2.1"}
        async with websockets.connect(url, proxy=None, additional_headers=mine) as socket:
            with pytest.raises(websockets.InvalidStatus) as refused:
                await websockets.connect(url, proxy=None, additional_headers=mine)
            assert refused.value.response.status_code == 429
            other = {"X-Forwarded-For": "192.0.2.2"}
            async with websockets.connect(url, proxy=None, additional_headers=other):
                await socket.send("here")
                assert await asyncio.wait_for(socket.recv(), WITHIN_S) == "here"
        await wait_until(lambda: len(table) == 0, WITHIN_S, "all connections are released")
        async with websockets.connect(url, proxy=None, additional_headers=mine) as socket:
            await socket.send("here")
            assert await asyncio.wait_for(socket.recv(), WITHIN_S) == "here"


async def test_forwarded_address_from_an_untrusted_proxy_is_ignored() -> None:
    app = App()
    table = ConnectionTable(10, 1, Proxies([ip_network("10.0.0.0/8")], "X-Forwarded-For"))
    async with serve(app, table) as listener, connect(listener, 3) as clients:
        for client in clients:
            client.ask_for(b"192.0.2.1", b"known/long")
        await wait_until(lambda: app.begun == 3, WITHIN_S, "all of them are served")
        app.may_answer.set()
        for client in clients:
            assert (await client.read()).startswith(b"HTTP/1.1 200 ")
