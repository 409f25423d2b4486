"""Limits on requests and WebSocket messages that the parsers do not have.

For a request: the bytes outside its body, the time to receive it, and how many wait on a connection. Without these
limits anyone who reaches the port could fill the memory with an endless head or with requests whose answers are never
read, or hold connections forever, all before authentication. The reader of a body limits its size.

The service behind a socket limits the size of its messages. Until a socket is accepted the limit is that of a channel,
since its caller is not known before. Sockets without a heartbeat get pings.

Each request also gets the ``ServerExtensions`` that ASGI has no messages for (``a2a.heads``).
"""

from __future__ import annotations

import asyncio
from contextvars import copy_context
from functools import partial
from typing import TYPE_CHECKING, Final
from weakref import ref

from uvicorn.protocols.http.flow_control import HIGH_WATER_LIMIT, FlowControl
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol

from passerelle.a2a_mapping.socket_frames import PATH
from passerelle.gateway.a2a.heads import ASGI_EXTENSION, HeadCache
from passerelle.gateway.a2a.http_request import OnCallerLeft
from passerelle.gateway.connections import SLOT, ConnectionTable

if TYPE_CHECKING:
    from collections.abc import Callable

    from uvicorn._types import (
        ASGI3Application,
        ASGIReceiveCallable,
        ASGISendCallable,
        ASGISendEvent,
        Scope,
    )
    from uvicorn.protocols.http.httptools_impl import RequestResponseCycle

    from passerelle.gateway.connections import ConnectionSlot

HEAD_BYTES: Final = 65_536
HEAD_S: Final = 15.0
BODY_S: Final = 60.0
WAITING: Final = 8
"""Requests of one connection that wait for earlier answers; bytes behind them are not read."""
_END: Final = b"\r\n\r\n"
_LINE_BYTES: Final = len(b": \r\n")
_TOO_LARGE: Final = "431 Request Header Fields Too Large"
_TOO_SLOW: Final = "408 Request Timeout"
_FULL: Final = (
    b"HTTP/1.1 503 Service Unavailable\r\n"
    b"retry-after: 5\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"
)

_TOO_MANY: Final = (
    b"HTTP/1.1 429 Too Many Requests\r\n"
    b"retry-after: 5\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"
)


def ignore_response_end() -> None:
    """Replaces the end-of-response callback of a connection that has ended."""


class _OwnLines:
    """The server's own header lines, which uvicorn makes anew each second."""

    __slots__ = ("headers", "written")

    def __init__(self) -> None:
        self.headers: list[tuple[bytes, bytes]] | None = None
        self.written = b""

    def write(self, headers: list[tuple[bytes, bytes]]) -> None:
        """Writes them once for all answers with the same list."""
        self.headers = headers
        self.written = b"".join(b"%b: %b\r\n" % header for header in headers)


_OWN_LINES: Final = _OwnLines()


def write_at_once(cycle: RequestResponseCycle, status: int, lines: bytes, body: bytes) -> bool:
    """``ServerExtensions.write_at_once``, one write in place of two; special cases are left to uvicorn's ``send``."""
    if (
        cycle.response_started
        or cycle.disconnected
        or not cycle.keep_alive
        or cycle.flow.write_paused
        or cycle.access_log
        or cycle.scope["method"] == "HEAD"
    ):
        return False
    cycle.response_started = cycle.response_complete = True
    cycle.waiting_for_100_continue = False
    if _OWN_LINES.headers is not cycle.default_headers:
        _OWN_LINES.write(cycle.default_headers)
    cycle.transport.write(
        b"%b%bcontent-length: %d\r\n%b\r\n%b"
        % (STATUS_LINE[status], _OWN_LINES.written, len(body), lines, body)
    )
    cycle.message_event.set()
    cycle.on_response()
    return True


class Watchers:
    """Callbacks for when the caller of a connection leaves.

    Requests refer to this object, and it does not refer to the connection, which refers to its last request: that cycle
    would wait for the garbage collector.
    """

    __slots__ = ("_callbacks", "_has_left")

    def __init__(self) -> None:
        self._callbacks: set[OnCallerLeft] = set()
        self._has_left = False

    def watch(self, left: OnCallerLeft) -> Callable[[], object]:
        """``ServerExtensions.watch``."""
        if self._has_left:
            asyncio.get_running_loop().call_soon(left)
        self._callbacks.add(left)
        return partial(self._callbacks.discard, left)

    def notify(self) -> None:
        """The caller has left."""
        self._has_left = True
        for left in tuple(self._callbacks):
            left()


class RequestExtensions:
    """``a2a.heads.ServerExtensions`` of one request.

    It refers weakly to the cycle of its request, whose scope refers to this object: otherwise a request whose body was
    never read would wait for the garbage collector.
    """

    __slots__ = ("_asked", "kept", "watch")

    def __init__(
        self, cycle: RequestResponseCycle, connection: BoundedRequests, kept: HeadCache
    ) -> None:
        self._asked = ref(cycle)
        self.watch: Final = connection.watchers.watch
        self.kept: Final = kept

    def take_body(self) -> bytes | None:
        cycle = self._asked()
        if cycle is None or cycle.more_body or cycle.disconnected or cycle.flow.read_paused:
            return None
        body = bytes(cycle.body)
        cycle.body = bytearray()
        cycle.message_event.clear()
        return body

    def write_at_once(self, status: int, lines: bytes, body: bytes) -> bool:
        cycle = self._asked()
        return cycle is not None and write_at_once(cycle, status, lines, body)


class _RequestFlow(FlowControl):
    """Resumes reading as the reader of a body asks, but not while enough requests wait."""

    is_full = False

    def resume_reading(self) -> None:
        if not self.is_full:
            super().resume_reading()


async def _refuse_head(
    _scope: Scope, _receive: ASGIReceiveCallable, send: ASGISendCallable
) -> None:
    """Replaces the application for a head that arrived whole and is too large."""
    headers = [(b"content-length", b"0"), (b"connection", b"close")]
    await send({"type": "http.response.start", "status": 431, "headers": headers})
    await send({"type": "http.response.body", "body": b"", "more_body": False})


async def _refuse_client(
    _scope: Scope, _receive: ASGIReceiveCallable, send: ASGISendCallable
) -> None:
    """Replaces the application; the proxy's connection stays open for its other clients."""
    headers = [(b"content-length", b"0"), (b"retry-after", b"5")]
    await send({"type": "http.response.start", "status": 429, "headers": headers})
    await send({"type": "http.response.body", "body": b"", "more_body": False})


class BoundedRequests(HttpToolsProtocol):
    """uvicorn's protocol, which closes a connection whose request is out of bounds."""

    cycle: RequestResponseCycle | None  # type: ignore[assignment]  # None before the first request
    head_s: float = HEAD_S
    """From the connection, or from the first byte of a later request, to the end of the head."""
    body_s: float = BODY_S
    """From the end of the head to the end of the body."""
    table: ConnectionTable = ConnectionTable()
    """The server's connections; without limits where it has none."""
    _served: RequestResponseCycle | None = None
    """The request that is or was served last; ``cycle`` is the one that was parsed last."""
    _offer: RequestExtensions | None = None
    """For the request that was parsed last."""
    _unread_bytes = 0
    _piece_bytes = 0
    """Bytes of the current parse, with earlier ones of the same head."""
    _held = b""
    """Unparsed bytes behind the waiting requests, from ``_held_at`` on."""
    _held_at = 0
    _is_upgraded = False
    _is_silent = True
    _is_forwarded = False
    """Whether each request names its client: the other end is a trusted proxy."""
    _is_over = False
    """Whether the client of the last parsed request has as many requests as it may."""
    _awaited_s: float | None = None
    """Seconds that the missing part of the request may take; None while nothing is missing."""
    _timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.flow = self._flow = _RequestFlow(transport)
        self.context = copy_context()
        """The connection's context; each request gets a copy."""
        self.watchers = Watchers()
        address = self.client[0] if self.client else None
        self._slot = self.table.admit(self, address)
        if self._slot is None:
            transport.write(_FULL)
            transport.close()
            return
        self.context.run(SLOT.set, self._slot)
        self._is_forwarded = self.table.proxies.forwards(address)
        self._start_timer(self.head_s)

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_timer()
        if self._slot is not None:
            self._slot.release()
        self._forget_waiting()
        super().connection_lost(exc)
        served = self._served
        if served is not None and not served.response_complete:
            # uvicorn notifies the request that was parsed last, which may have waited behind this one.
            served.disconnected = True
            served.message_event.set()
        self.watchers.notify()

    def data_received(self, data: bytes) -> None:
        self._is_silent = False
        if self._held:
            self._hold(self._held[self._held_at :] + data, 0)
        elif data.count(_END) <= WAITING - len(self.pipeline):
            self._parse(data)
        else:
            # It may contain more requests than may wait, so each is parsed separately.
            self._parse_heads(data, 0)

    @property
    def is_idle(self) -> bool:
        """``CountedConnection``."""
        return self.cycle is None or self.cycle.response_complete

    def evict(self) -> None:
        """``CountedConnection``."""
        self.transport.abort()

    def handle_websocket_upgrade(self) -> None:
        self._is_upgraded = True
        if self._is_over:
            self.transport.write(_TOO_MANY)
            self.transport.close()
            return
        self.context.copy().run(super().handle_websocket_upgrade)
        socket = self.transport.get_protocol()
        if self._slot is not None and isinstance(socket, BoundedSockets):
            socket.take_slot(self._slot)
            self.table.replace_connection(self._slot, socket)

    def _parse(self, data: bytes) -> None:
        self._unread_bytes = self._piece_bytes = self._unread_bytes + len(data)
        super().data_received(data)
        if self._unread_bytes > HEAD_BYTES:
            self._refuse(_TOO_LARGE)
        elif self._awaited_s is not None and self._timer is None:
            # A request that arrives in one piece, as nearly all do, never needs a timer.
            self._start_timer(self._awaited_s)

    def _parse_heads(self, data: bytes, start: int) -> None:
        """Parses up to the end of one head after the other, until enough requests wait."""
        while start < len(data) and not self._is_upgraded and not self.transport.is_closing():
            if len(self.pipeline) >= WAITING:
                self._hold(data, start)
                return
            end = data.find(_END, start) + len(_END)
            if end < len(_END):
                end = len(data)
            self._parse(data[start:end])
            start = end

    def _hold(self, data: bytes, start: int) -> None:
        self._held, self._held_at = data, start
        self._flow.is_full = True
        self.flow.pause_reading()

    def on_response_complete(self) -> None:
        self._end_for_client()
        self._flow.is_full = bool(self._held) or (len(self.pipeline) > 1 and self._is_large())
        super().on_response_complete()
        if self._held:
            data, self._held = self._held, b""
            self._flow.is_full = False
            self._parse_heads(data, self._held_at)
            self.flow.resume_reading()

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._await(self.head_s)

    def on_headers_complete(self) -> None:
        self._await(self.body_s)
        app = self.app
        if self._piece_bytes > HEAD_BYTES and self._measure_head() > HEAD_BYTES:
            self.app = _refuse_head
        elif self._is_forwarded:
            self._is_over = not self._begin_for_client()
            self.app = _refuse_client if self._is_over else app
        super().on_headers_complete()
        self.app = app
        cycle = self.cycle
        if cycle is None:  # a WebSocket, which is served elsewhere
            return
        # The task that serves it starts after this.
        self._offer = offer = RequestExtensions(cycle, self, HeadCache())
        self.scope["extensions"] = {ASGI_EXTENSION: offer}  # type: ignore[dict-item]

    def _begin_for_client(self) -> bool:
        """Starts a further request of the proxy; False if its client has as many as it may."""
        client = self.table.proxies.find_client(self.headers)
        return self._slot is None or self._slot.begin(client)

    def _end_for_client(self) -> None:
        """Ends an answer to the proxy; requests waiting behind it keep the slot."""
        if self._is_forwarded and self._slot is not None and not self.pipeline:
            self._slot.count_for(None)

    def _is_large(self) -> bool:
        """Whether reading pauses until the body that arrived last is taken."""
        return self.cycle is not None and len(self.cycle.body) > HIGH_WATER_LIMIT

    def _measure_head(self) -> int:
        """The bytes, without blanks, of a head that arrived in one piece with its body or with other requests."""
        lines = sum(len(name) + len(said) + _LINE_BYTES for name, said in self.headers)
        return len(self.url) + lines

    def on_body(self, body: bytes) -> None:
        # What remains are heads, chunk frames and trailers: none of them may grow without limit.
        self._unread_bytes -= len(body)
        super().on_body(body)
        if self.pipeline and self._is_large():
            self._flow.is_full = True

    def on_message_complete(self) -> None:
        self._unread_bytes = 0
        self._await(None)
        super().on_message_complete()

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: ASGI3Application) -> None:
        self._served = cycle
        # A waiting request starts from inside the one before it, which may have shown a credential.
        self.context.copy().run(super()._start_asgi_task, cycle, app)

    def _forget_waiting(self) -> None:
        """Drops the waiting requests; each refers to the connection, which refers to the last one."""
        for cycle, _ in self.pipeline:
            cycle.on_response = ignore_response_end
        self.pipeline.clear()
        self._held = b""

    def _await(self, within_s: float | None) -> None:
        """Sets what the connection waits for now, and stops the timer of what came before; None: nothing."""
        self._awaited_s = within_s
        if self._timer is not None:
            self._stop_timer()

    def _start_timer(self, within_s: float) -> None:
        self._timer = self.loop.call_later(within_s, self._refuse, _TOO_SLOW)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _refuse(self, status: str) -> None:
        self._stop_timer()
        if self.transport.is_closing():
            return
        # A connection that was opened in advance and never used is closed without an answer.
        cycle = self.cycle
        is_answered = cycle is not None and (cycle.response_started or bool(self.pipeline))
        if not self._is_silent and not is_answered:
            head = f"HTTP/1.1 {status}\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"
            self.transport.write(head.encode())
        self.transport.close()


PING_S: Final = 20.0


class BoundedSockets(WebSocketsSansIOProtocol):
    """uvicorn's WebSocket protocol, which takes over the slot of the connection that asked for it."""

    frame_bytes: int
    """Limits one A2A frame like the body of a request."""
    is_idle = False
    """``CountedConnection``: a socket carries a channel, or is about to."""
    _slot: ConnectionSlot | None = None

    def take_slot(self, slot: ConnectionSlot) -> None:
        """Takes over the connection's slot."""
        self._slot = slot

    def evict(self) -> None:
        """``CountedConnection``."""
        self.transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        if self._slot is not None:
            self._slot.release()
        super().connection_lost(exc)

    async def send(self, message: ASGISendEvent) -> None:
        if message["type"] == "websocket.accept" and self.scope["path"].endswith(PATH):
            self.conn.max_message_size = self.frame_bytes
            self.ping_interval = self.ping_timeout = PING_S
        await super().send(message)


def make_socket_protocol(frame_bytes: int) -> type[BoundedSockets]:
    """The WebSocket protocol class for a server."""
    return type("Sockets", (BoundedSockets,), {"frame_bytes": frame_bytes})
