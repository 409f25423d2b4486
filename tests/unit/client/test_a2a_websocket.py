"""The transport of A2A over WebSocket, against a server that violates the protocol."""

from __future__ import annotations

import asyncio

import httpx
import pytest
from websockets.asyncio.server import ServerConnection, serve
from websockets.typing import Subprotocol

from passerelle.client.a2a_websocket import SUBPROTOCOL, SocketTransport
from passerelle.core.wire.json import JsonObject

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize("rubbish", ["{", "[]", "7", '{"id": []}', b"\xff"])
async def test_rubbish_ends_the_socket_and_the_call_on_it(rubbish: str | bytes) -> None:
    codes: asyncio.Queue[int | None] = asyncio.Queue()

    async def talk(socket: ServerConnection) -> None:
        await socket.recv()
        await socket.send(rubbish)
        await socket.wait_closed()
        codes.put_nowait(socket.close_code)

    async with serve(talk, "127.0.0.1", 0, subprotocols=[Subprotocol(SUBPROTOCOL)]) as server:
        port = next(iter(server.sockets)).getsockname()[1]
        transport = SocketTransport(f"ws://127.0.0.1:{port}")
        async with httpx.AsyncClient(transport=transport, base_url="http://agent") as client:
            call: JsonObject = {"jsonrpc": "2.0", "id": 1, "method": "GetTask", "params": {}}
            async with asyncio.timeout(15):
                for _ in range(2):  # the second call opens a socket of its own
                    with pytest.raises(httpx.RemoteProtocolError):
                        await client.post("/", json=call)
                    assert await codes.get() == 1007
