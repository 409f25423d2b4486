"""The channel over picows: a port of its own, where a write is one system call and an idle socket needs no task.

Nowhere else is picows known, which is an extra. The handshake is described as an ASGI scope, so all that judges it is
the same as over ASGI. What picows does not do is done here: putting fragments together, and the closing handshake.
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

_LEFT: Final = frozenset({1000, 1001})
_HELD_BYTES: Final = 65_536
_READ_BYTES: Final = 2_048
"""What an idle socket keeps to read into; it grows with what comes."""
_CLOSING_S: Final = 2.0
"""How long the other side may take to answer a close."""
_TEXT: Final = WSMsgType.TEXT
_COPIED_BYTES: Final = 8_192
"""The largest message that picows copies."""
_HEAD_ROOM: Final = bytes(14)
"""What picows asks for before a message whose head it is to write in place."""
_PART_COST: Final = 64
"""Bytes that a further part of a message counts beside its own: empty ones would never come to an end."""


class FastSocket(WSListener):
    """One accepted socket; ``endpoint`` serves it once it is open, by the ``scope`` of its handshake."""

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

    # What picows tells

    def on_ws_connected(self, transport: WSTransport) -> None:
        self._transport = transport
        # With TLS there are sockets of aiofastnet below, which copy what they hold.
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
            raise WSProtocolError(WSCloseCode.PROTOCOL_ERROR, "nothing is compressed here")
        match frame.msg_type:
            case WSMsgType.TEXT | WSMsgType.BINARY if self._parts is not None:
                raise WSProtocolError(WSCloseCode.PROTOCOL_ERROR, "a message within a message")
            case WSMsgType.TEXT | WSMsgType.BINARY as kind if frame.fin:
                self._give_on(kind, frame.get_payload_as_bytes())
            case WSMsgType.TEXT | WSMsgType.BINARY as kind:
                self._take_first(kind, frame)
            case WSMsgType.CONTINUATION:
                self._take_further(frame)
            case WSMsgType.CLOSE:
                self._take_close(transport, frame)
            case WSMsgType.PING | WSMsgType.PONG:
                pass  # a ping is answered underneath

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
            raise WSProtocolError(WSCloseCode.PROTOCOL_ERROR, "a continuation of nothing")
        part = frame.get_payload_as_bytes()
        self._parts.append(part)
        self._part_bytes += len(part) + _PART_COST
        if self._part_bytes > self._message_bytes:
            raise WSProtocolError(WSCloseCode.MESSAGE_TOO_BIG, "message too large")
        if frame.fin:
            data, self._parts = b"".join(self._parts), None
            self._give_on(self._kind, data)

    def _give_on(self, kind: WSMsgType, data: bytes) -> None:
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
        self._left = code in _LEFT
        if not transport.is_close_frame_sent:
            transport.send_close(_number(code or 1000))
        transport.disconnect()


class FastListener:
    """Serves ``endpoint`` on a listening socket; use as ``async with``.

    ``admits`` looks at the scope of a handshake before anything else does.
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
        # An adapter, since picows would make a logger for each socket under a plain one.
        quiet = logging.LoggerAdapter(logging.getLogger("passerelle.picows"), {})
        quiet.logger.setLevel(logging.CRITICAL)
        self._server = await ws_create_server(
            self._greet,
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
        """Accepts nothing more; what is open is the endpoint's to drain."""
        if self._server is not None:
            self._server.close()

    def _greet(
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
                HTTPStatus.FORBIDDEN, "origin", "another name for this machine, or another origin"
            )
        if request.headers.get("upgrade", "").lower() != "websocket":
            return NOT_AN_UPGRADE
        return self._endpoint.judge(scope)


def _drop(_message: bytes) -> None:
    """Before a socket is open nothing is written to it."""


def _send(transport: WSTransport, message: bytes) -> None:
    """Of a message that picows does not copy it gives the head on in a buffer that the next message overwrites.

    The sockets of the loop may still hold that by then. So such a message is copied here, behind room for its head.
    """
    if len(message) <= _COPIED_BYTES:
        transport.send(_TEXT, message)
    else:
        copied = bytearray().join((_HEAD_ROOM, message))
        transport.send_reuse_external_bytearray(_TEXT, copied, len(_HEAD_ROOM))


def _describe(request: WSUpgradeRequest, path: str, query: bytes, *, is_secure: bool) -> Scope:
    """The handshake as ASGI would describe it, but for where it comes from."""
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
    # picows ends the connection after it and says so, whatever a header of ours says.
    headers = {name: value for name, value in refused.headers.items() if name != "Connection"}
    headers["Content-Type"] = PROBLEM
    answer: WSUpgradeResponse = WSUpgradeResponse.create_error_response(
        refused.status, refused.body, headers
    )
    return answer


def _number(code: int) -> WSCloseCode:
    """Its types name an enumeration; what it takes is any number."""
    return cast("WSCloseCode", code)
