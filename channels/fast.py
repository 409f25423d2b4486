"""Channels over picows: a port of its own, where a write is one system call and an idle socket needs no task.

Only this module knows picows, which is an extra. The handshake is described as an ASGI scope, so the same checks apply
as over ASGI. This module adds what picows lacks: reassembling fragments, and the closing handshake.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from functools import partial
from http import HTTPStatus
from typing import TYPE_CHECKING, Final, Self, cast

from picows import (
    WSCloseCode,
    WSFrame,
    WSListener,
    WSMsgType,
    WSProtocolError,
    WSTransport,
    WSUpgradeRequest,
    WSUpgradeResponse,
    WSUpgradeResponseWithListener,
    ws_create_server,  # pyright: ignore[reportUnknownVariableType] - its further arguments have no types
)

from passerelle.channels.handshake import NOT_AN_UPGRADE, PROBLEM, HandshakeRefused
from passerelle.protocol.frames import SUBPROTOCOL

if TYPE_CHECKING:
    import socket
    import ssl

    from starlette.types import Scope

    from passerelle.channels.endpoint import ChannelEndpoint
    from passerelle.channels.transport import SocketListener

_CLEAN_CODES: Final = frozenset({1000, 1001})
_HELD_BYTES: Final = 65_536
_READ_BYTES: Final = 2_048
"""Read buffer of an idle socket; it grows with the data."""
_CLOSING_S: Final = 2.0
"""Time for the client to answer a close."""
_TEXT: Final = WSMsgType.TEXT
_COPIED_BYTES: Final = 8_192
"""The largest message that picows copies."""
_HEAD_ROOM: Final = bytes(14)
"""Space that picows needs before a message to write its head in place."""
_PART_COST: Final = 64
"""Bytes counted for each further fragment on top of its size: empty fragments must be bounded as well."""


class FastSocket(WSListener):
    """One accepted socket; once it is open, ``endpoint`` serves it with the ``scope`` of its handshake."""

    __slots__ = (
        "_closer",
        "_endpoint",
        "_kind",
        "_left",
        "_message_bytes",
        "_part_bytes",
        "_parts",
        "_receiver",
        "_scope",
        "_transport",
        "is_writable",
        "write",
    )

    def __init__(self, endpoint: ChannelEndpoint, scope: Scope, message_bytes: int) -> None:
        self.is_writable = True
        self.write: partial[None] = partial(_drop)
        self._endpoint = endpoint
        self._scope: Scope | None = scope
        self._message_bytes = message_bytes
        self._transport: WSTransport | None = None
        self._receiver: SocketListener | None = None
        self._parts: list[bytes] | None = None
        self._part_bytes = 0
        self._kind = _TEXT
        self._left = False
        self._closer: asyncio.TimerHandle | None = None

    @property
    def buffered(self) -> int:
        return self._stream.get_write_buffer_size()

    @property
    def _stream(self) -> asyncio.Transport:
        if self._transport is None:
            raise AssertionError("a socket is used once it is open")
        return self._transport.underlying_transport

    def pause(self) -> None:
        if not self._stream.is_closing():
            self._stream.pause_reading()

    def resume(self) -> None:
        if not self._stream.is_closing():
            self._stream.resume_reading()

    def close(self, code: int, reason: str) -> None:
        self._receiver = None
        transport = self._transport
        if transport is None or transport.is_disconnected or transport.is_close_frame_sent:
            return
        transport.send_close(_number(code), reason.encode())
        self.resume()
        loop = asyncio.get_running_loop()
        self._closer = loop.call_later(_CLOSING_S, self._stream.abort)

    def abort(self) -> None:
        self._receiver = None
        if self._transport is not None:
            self._stream.abort()

    # Callbacks of picows

    def on_ws_connected(self, transport: WSTransport) -> None:
        self._transport = transport
        # With TLS the sockets are those of aiofastnet, which copy what they buffer.
        if transport.is_secure:
            self.write = partial(transport.send, _TEXT)
        else:
            self.write = partial(_send, transport)
        stream = transport.underlying_transport
        stream.set_write_buffer_limits(_HELD_BYTES)
        if self._scope is not None:
            scope, self._scope = self._scope, None
            peer: tuple[str, int] | str | None = stream.get_extra_info("peername")
            scope["client"] = peer[:2] if isinstance(peer, tuple) else None
            self._receiver = self._endpoint.serve(self, scope)

    def on_ws_frame(self, transport: WSTransport, frame: WSFrame) -> None:
        if transport.is_close_frame_sent and frame.msg_type != WSMsgType.CLOSE:
            return
        if frame.rsv1 or frame.rsv2 or frame.rsv3:
            raise WSProtocolError(WSCloseCode.PROTOCOL_ERROR, "compression is not supported")
        match frame.msg_type:
            case WSMsgType.TEXT | WSMsgType.BINARY if self._parts is not None:
                raise WSProtocolError(WSCloseCode.PROTOCOL_ERROR, "a message within a message")
            case WSMsgType.TEXT | WSMsgType.BINARY as kind if frame.fin:
                self._pass_on(kind, frame.get_payload_as_bytes())
            case WSMsgType.TEXT | WSMsgType.BINARY as kind:
                self._take_first(kind, frame)
            case WSMsgType.CONTINUATION:
                self._take_further(frame)
            case WSMsgType.CLOSE:
                self._take_close(transport, frame)
            case WSMsgType.PING | WSMsgType.PONG:
                pass  # picows answers pings

    def on_ws_disconnected(self, transport: WSTransport) -> None:
        del transport
        if self._closer is not None:
            self._closer.cancel()
        receiver, self._receiver = self._receiver, None
        if receiver is not None:
            receiver.take_end(left=self._left)

    def pause_writing(self) -> None:
        self.is_writable = False

    def resume_writing(self) -> None:
        self.is_writable = True
        if self._receiver is not None:
            self._receiver.take_room()

    def _take_first(self, kind: WSMsgType, frame: WSFrame) -> None:
        part = frame.get_payload_as_bytes()
        self._kind, self._parts, self._part_bytes = kind, [part], len(part)

    def _take_further(self, frame: WSFrame) -> None:
        if self._parts is None:
            raise WSProtocolError(
                WSCloseCode.PROTOCOL_ERROR, "a continuation without a first frame"
            )
        part = frame.get_payload_as_bytes()
        self._parts.append(part)
        self._part_bytes += len(part) + _PART_COST
        if self._part_bytes > self._message_bytes:
            raise WSProtocolError(WSCloseCode.MESSAGE_TOO_BIG, "message too large")
        if frame.fin:
            data, self._parts = b"".join(self._parts), None
            self._pass_on(self._kind, data)

    def _pass_on(self, kind: WSMsgType, data: bytes) -> None:
        if self._receiver is None:
            return
        if kind == WSMsgType.BINARY:
            self._receiver.take_message(data)
            return
        try:
            text = data.decode()
        except UnicodeDecodeError:
            raise WSProtocolError(WSCloseCode.INVALID_TEXT, "not UTF-8") from None
        self._receiver.take_message(text)

    def _take_close(self, transport: WSTransport, frame: WSFrame) -> None:
        code = int(cast("int", frame.get_close_code()))
        self._left = code in _CLEAN_CODES
        if not transport.is_close_frame_sent:
            transport.send_close(_number(code or 1000))
        transport.disconnect()


class FastListener:
    """Serves ``endpoint`` on a listening socket; use as ``async with``.

    ``admits`` checks the scope of a handshake before anything else.
    """

    def __init__(
        self,
        endpoint: ChannelEndpoint,
        listener: socket.socket,
        path: str,
        *,
        tls: ssl.SSLContext | None = None,
        message_bytes: int | None = None,
        admits: Callable[[Scope], bool] = lambda _scope: True,
    ) -> None:
        self._endpoint = endpoint
        self._listener = listener
        self._path = path
        self._tls = tls
        self._message_bytes = message_bytes or endpoint.limits.inbound_bytes
        self._admits = admits
        self._server: asyncio.Server | None = None

    async def __aenter__(self) -> Self:
        # An adapter, since with a plain logger picows would create a logger for each socket.
        quiet = logging.LoggerAdapter(logging.getLogger("passerelle.picows"), {})
        quiet.logger.setLevel(logging.CRITICAL)
        self._server = await ws_create_server(
            self._accept,
            sock=self._listener,
            ssl=self._tls,
            backlog=2_048,
            logger_name=quiet,
            max_frame_size=self._message_bytes,
            read_buffer_init_size=_READ_BYTES,
            websocket_handshake_timeout=self._endpoint.limits.hello_s,
            use_aiofastnet=self._tls is not None,
        )
        return self

    async def __aexit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> None:
        """Accepts no more sockets; the endpoint drains the open ones."""
        if self._server is not None:
            self._server.close()

    def _accept(
        self, request: WSUpgradeRequest
    ) -> WSUpgradeResponseWithListener | FastSocket | None:
        path, _, query = request.path.partition(b"?")
        if path.decode("latin-1") != self._path:
            return None
        scope = _describe(request, self._path, query, is_secure=self._tls is not None)
        refused = self._judge(request, scope)
        if refused is not None:
            return WSUpgradeResponseWithListener(_render(refused), None)
        accepted = WSUpgradeResponse.create_101_response({"Sec-WebSocket-Protocol": SUBPROTOCOL})
        opening = FastSocket(self._endpoint, scope, self._message_bytes)
        return WSUpgradeResponseWithListener(accepted, opening)

    def _judge(self, request: WSUpgradeRequest, scope: Scope) -> HandshakeRefused | None:
        if not self._admits(scope):
            return HandshakeRefused(
                HTTPStatus.FORBIDDEN, "origin", "this host name or origin is not allowed"
            )
        if request.headers.get("upgrade", "").lower() != "websocket":
            return NOT_AN_UPGRADE
        return self._endpoint.judge(scope)


def _drop(_message: bytes) -> None:
    """Before a socket is open nothing is written to it."""


def _send(transport: WSTransport, message: bytes) -> None:
    """Copies messages that picows does not copy: it writes the head into a buffer that the next message overwrites.

    The socket may still hold that buffer then, so such a message is copied here, with room for its head.
    """
    if len(message) <= _COPIED_BYTES:
        transport.send(_TEXT, message)
    else:
        copied = bytearray().join((_HEAD_ROOM, message))
        transport.send_reuse_external_bytearray(_TEXT, copied, len(_HEAD_ROOM))


def _describe(request: WSUpgradeRequest, path: str, query: bytes, *, is_secure: bool) -> Scope:
    """The handshake as an ASGI scope, without the client's address."""
    offered = request.headers.getall("sec-websocket-protocol", [])
    return {
        "type": "websocket",
        "scheme": "wss" if is_secure else "ws",
        "path": path,
        "query_string": query,
        "headers": [
            (name.lower().encode("ascii"), value.encode("ascii", "surrogateescape"))
            for name, value in request.headers.items()
        ],
        "subprotocols": [item.strip() for line in offered for item in line.split(",")],
    }


def _render(refused: HandshakeRefused) -> WSUpgradeResponse:
    # picows ends the connection after the response and sends its own Connection header.
    headers = {name: value for name, value in refused.headers.items() if name != "Connection"}
    headers["Content-Type"] = PROBLEM
    answer: WSUpgradeResponse = WSUpgradeResponse.create_error_response(
        refused.status, refused.body, headers
    )
    return answer


def _number(code: int) -> WSCloseCode:
    """The annotation of picows names an enumeration; it accepts any number."""
    return cast("WSCloseCode", code)
