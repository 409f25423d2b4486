"""The WebSocket binding with the same JSON as the other callers."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from typing import cast

import orjson
from websockets.asyncio.client import ClientConnection, connect
from websockets.typing import Subprotocol

from tests.conformance.callers import WEBSOCKET, Answer, Caller, Json, Refusal, Stream


class SocketCaller(Caller):
    """Sequential calls on one socket."""

    binding = WEBSOCKET

    def __init__(self, socket: ClientConnection) -> None:
        self._socket = socket
        self._sent = 0

    async def call(self, operation: str, params: Json | None = None, **headers: str) -> Answer:
        await self._send(operation, params or {}, headers)
        frame = await self._receive()
        return Answer(frame.get("result"), _read_refusal(frame), raw=orjson.dumps(frame))

    @asynccontextmanager
    async def stream(self, operation: str, params: Json, **headers: str) -> AsyncGenerator[Stream]:
        await self._send(operation, params, headers)
        first = await self._receive()
        yield Stream(self._read(first), _read_refusal(first))

    async def _read(self, frame: Json) -> AsyncIterator[Json]:
        while "result" in frame:
            yield frame["result"]
            frame = await self._receive()

    async def _send(self, operation: str, params: Json, headers: dict[str, str]) -> None:
        self._sent += 1
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        metadata = {"metadata": {"a2a-service-parameters": named}} if named else {}
        request = {"jsonrpc": "2.0", "id": self._sent, "method": operation}
        await self._socket.send(
            orjson.dumps({**request, "params": {**params, **metadata}}).decode()
        )

    async def _receive(self) -> Json:
        frame = cast("Json", orjson.loads(await self._socket.recv()))
        assert (frame["jsonrpc"], frame["id"]) == ("2.0", self._sent), frame
        return frame


@asynccontextmanager
async def open_socket(url: str, headers: dict[str, str]) -> AsyncGenerator[SocketCaller]:
    """A caller of the agent at ``url``."""
    async with connect(
        f"{url.replace('http', 'ws', 1)}/ws",
        additional_headers=headers,
        subprotocols=[Subprotocol("a2a.v1")],
        compression=None,
        proxy=None,
    ) as socket:
        yield SocketCaller(socket)


def _read_refusal(frame: Json) -> Refusal | None:
    error = frame.get("error")
    if error is None:
        return None
    return Refusal(error["code"], error["message"], tuple(error.get("data") or ()))
