"""A2A over WebSocket for clients of the a2a-sdk: a transport for its client factory.

::

    factory = ClientFactory(ClientConfig(supported_protocol_bindings=[BINDING, "JSONRPC"]))
    factory.register(BINDING, open_websocket)
    client = factory.create(card)

It reuses the SDK's JSON-RPC transport over a WebSocket. Per-request headers are sent as service parameters. Headers of
the handshake, such as ``Authorization``, go into ``headers``. When a socket closes, the calls in flight on it fail; the
next call opens a new socket.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Final, cast

import httpx
import orjson
from a2a.client.transports.jsonrpc import JsonRpcTransport
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidHandshake
from websockets.frames import CloseCode
from websockets.typing import Subprotocol

if TYPE_CHECKING:
    from collections.abc import Mapping

    from a2a.client import ClientConfig
    from a2a.types import AgentCard

    from passerelle.core.wire.json import Json, JsonObject

__all__ = ["BINDING", "SUBPROTOCOL", "SocketTransport", "bind_headers", "open_websocket"]

BINDING: Final = "urn:passerelle:binding:websocket:1"
SUBPROTOCOL: Final = "a2a.v1"
SERVICE_PARAMETERS: Final = "a2a-service-parameters"
_CARRIED: Final = frozenset(
    {"a2a-extensions", "a2a-stream-snapshot", "idempotency-key", "traceparent", "tracestate"}
)
_STREAMS: Final = frozenset({"SendStreamingMessage", "SubscribeToTask"})
_OPEN_S: Final = 10.0
_END: Final = b""


def open_websocket(
    card: AgentCard, url: str, config: ClientConfig, headers: Mapping[str, str] | None = None
) -> JsonRpcTransport:
    """Creates a transport; a factory calls it. Bind ``headers`` of the handshake with ``functools.partial``."""
    del config
    return JsonRpcTransport(httpx.AsyncClient(transport=SocketTransport(url, headers)), card, url)


def bind_headers(headers: Mapping[str, str]) -> partial[JsonRpcTransport]:
    """Returns ``open_websocket`` with headers bound, such as ``Authorization``."""
    return partial(open_websocket, headers=dict(headers))


class SocketTransport(httpx.AsyncBaseTransport):
    """JSON-RPC requests over one socket, opened by the first request."""

    def __init__(self, url: str, headers: Mapping[str, str] | None = None) -> None:
        self._url = url
        self._headers = dict(headers or {})
        self._opening = asyncio.Lock()
        self._socket: ClientConnection | None = None
        self._reading: asyncio.Task[None] | None = None
        self._calls: dict[Json, asyncio.Queue[JsonObject | None]] = {}

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        """Sends one call and returns its response in the form of JSON-RPC over HTTP.

        Raises:
            httpx.ConnectError: the socket cannot be opened; nothing was sent.
            httpx.RemoteProtocolError: it closed during the call; the outcome is unknown.
        """
        call: JsonObject = orjson.loads(await request.aread())
        socket = await self._open()
        queue: asyncio.Queue[JsonObject | None] = asyncio.Queue()
        rpc_id = call["id"]
        self._calls[rpc_id] = queue
        try:
            await socket.send(orjson.dumps(_add_parameters(call, request.headers)).decode())
            first = await self._receive(queue)
        except ConnectionClosed:
            self._calls.pop(rpc_id, None)
            raise httpx.RemoteProtocolError("the socket has ended") from None
        except BaseException:
            # The gateway serves only so many calls of a socket at once.
            await self.leave(rpc_id)
            raise
        if call["method"] not in _STREAMS or "error" in first:
            self._calls.pop(rpc_id, None)
            return httpx.Response(200, json=first)
        events = _Events(self, rpc_id, first, queue)
        return httpx.Response(200, headers={"content-type": "text/event-stream"}, stream=events)

    async def aclose(self) -> None:
        """Closes the socket."""
        if self._socket is not None:
            await self._socket.close()
        if self._reading is not None:
            await asyncio.gather(self._reading, return_exceptions=True)

    async def leave(self, rpc_id: Json) -> None:
        """Ends a call whose answer the caller no longer reads; its task continues."""
        if self._calls.pop(rpc_id, None) is None or self._socket is None:
            return
        frame: JsonObject = {"jsonrpc": "2.0", "method": "cancelStream", "params": {"id": rpc_id}}
        with suppress(ConnectionClosed):
            await self._socket.send(orjson.dumps(frame).decode())

    async def _receive(self, queue: asyncio.Queue[JsonObject | None]) -> JsonObject:
        frame = await queue.get()
        if frame is None:
            raise httpx.RemoteProtocolError("the socket has ended")
        return frame

    async def _open(self) -> ClientConnection:
        async with self._opening:
            if self._socket is None or self._reading is None or self._reading.done():
                try:
                    self._socket = await connect(
                        self._url,
                        additional_headers=self._headers,
                        subprotocols=[Subprotocol(SUBPROTOCOL)],
                        compression=None,
                        open_timeout=_OPEN_S,
                        max_size=None,  # as over HTTP: a longer answer would end every other call
                        proxy=None,
                    )
                except (OSError, InvalidHandshake, TimeoutError) as error:
                    raise httpx.ConnectError(str(error)) from error
                self._reading = asyncio.create_task(self._read(self._socket))
            return self._socket

    async def _read(self, socket: ClientConnection) -> None:
        try:
            async for message in socket:
                frame = _read_frame(message)
                if frame is None:
                    await socket.close(CloseCode.INVALID_DATA, "no frame of this binding")
                    break
                call = self._calls.get(frame.get("id"))
                if call is not None:
                    call.put_nowait(frame)
        except ConnectionClosed:
            pass  # reported to every call below
        finally:
            for call in self._calls.values():
                call.put_nowait(None)
            self._calls.clear()


class _Events(httpx.AsyncByteStream):
    """The frames of a stream as server-sent events."""

    def __init__(
        self,
        transport: SocketTransport,
        rpc_id: Json,
        first: JsonObject,
        queue: asyncio.Queue[JsonObject | None],
    ) -> None:
        self._transport = transport
        self._id = rpc_id
        self._first: JsonObject | None = first
        self._queue = queue

    async def __aiter__(self) -> AsyncIterator[bytes]:
        frame: JsonObject | None = self._first
        while frame is not None and "streamEnd" not in frame:
            cursor = frame.pop("cursor", None)
            yield b"id: %b\n" % str(cursor).encode() if cursor is not None else _END
            yield b"data: %b\n\n" % orjson.dumps(frame)
            if "error" in frame:
                return
            frame = await self._queue.get()
        if frame is None:
            raise httpx.RemoteProtocolError("the socket has ended")

    async def aclose(self) -> None:
        await self._transport.leave(self._id)


def _read_frame(message: str | bytes) -> JsonObject | None:
    """Returns the frame, or None if it is invalid. The id of an unknown call can have any type."""
    try:
        frame: Json = orjson.loads(message)
    except orjson.JSONDecodeError:
        return None
    is_frame = isinstance(frame, dict) and not isinstance(frame.get("id"), dict | list)
    return cast("JsonObject", frame) if is_frame else None


def _add_parameters(call: JsonObject, headers: httpx.Headers) -> JsonObject:
    service: dict[str, Json] = {name: value for name, value in headers.items() if name in _CARRIED}
    params = call.get("params")
    known: JsonObject = dict(params) if isinstance(params, dict) else {}
    after = headers.get("last-event-id")
    if after is not None and call["method"] == "SubscribeToTask":
        known["after"] = after
    if service:
        metadata = known.get("metadata")
        kept: JsonObject = dict(metadata) if isinstance(metadata, dict) else {}
        kept[SERVICE_PARAMETERS] = service
        known["metadata"] = kept
    return {**call, "params": known}
