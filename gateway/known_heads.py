"""Serves repeated request heads without parsing them: on a kept connection most heads are equal byte for byte.

The scope that the parser made is reused, and so is what the application kept for it (``a2a.heads.HeadCache``). Only a
request that arrived alone and whole is served this way, so the parser is always between two messages. A
``CachedHeadApp`` that kept something serves the next request from its cache; every other application is called as for
a newly parsed head.
"""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING, Final, cast

from uvicorn.protocols.http.httptools_impl import RequestResponseCycle

from passerelle.core.wire.record import value
from passerelle.gateway.a2a.heads import ASGI_EXTENSION, CachedHeadApp
from passerelle.gateway.request_bounds import (
    BoundedRequests,
    RequestExtensions,
    ignore_response_end,
    write_at_once,
)

if TYPE_CHECKING:
    from uvicorn._types import ASGI3Application, ASGIReceiveEvent, HTTPScope

    from passerelle.gateway.a2a.heads import HeadCache

_END: Final = b"\r\n\r\n"
_NEVER: Final = frozenset({b"transfer-encoding", b"expect", b"upgrade"})
"""A head with one of these needs more than an answer, and is parsed each time."""


@value
class KnownHead:
    """The head of a served request; ``length`` is the whole request's length in bytes."""

    head: bytes
    length: int
    scope: HTTPScope
    kept: HeadCache


class _UnusedEvent(asyncio.Event):
    """An event without waiters: most requests are served without an ASGI message."""

    def set(self) -> None:
        return

    def clear(self) -> None:
        return


_UNUSED_EVENT: Final = _UnusedEvent()


class KnownRequest(RequestResponseCycle):
    """A request with a known head that arrived whole; it is its own ``a2a.heads.ServerExtensions``.

    One is made for each message, so what all of them share is in the class, and what only ASGI messages need is made
    when the first one is requested. All requests with a head share its scope: do not change it.
    """

    disconnected = False
    keep_alive = True
    waiting_for_100_continue = False
    more_body = False
    response_started = False
    response_complete = False
    chunked_encoding = None
    expected_content_length = 0
    message_event: asyncio.Event = _UNUSED_EVENT

    def __init__(self, connection: KnownHeads, known: KnownHead, body: bytes) -> None:
        self.scope = known.scope
        self.transport = connection.transport
        self.flow = connection.flow
        self.logger = connection.logger
        self.access_logger = connection.access_logger
        self.access_log = connection.access_log
        self.default_headers = connection.server_state.default_headers
        self.on_response = connection.on_response_complete
        self.watch = connection.watchers.watch
        self.kept = known.kept
        self._whole: bytes | None = body

    write_at_once = write_at_once

    def take_body(self) -> bytes | None:
        body = self._whole
        if self.disconnected or self.flow.read_paused:
            return None
        self._whole = None
        return body

    async def receive(self) -> ASGIReceiveEvent:
        if self.message_event is _UNUSED_EVENT:
            self.use_messages()
        return await super().receive()

    def use_messages(self) -> None:
        """Switches to ASGI messages; the first one has the body, if it was not taken."""
        self.message_event = asyncio.Event()
        body, self._whole = self._whole, None
        self.body = bytearray(body or b"")
        if body is not None:
            self.message_event.set()


class KnownHeads(BoundedRequests):
    """The protocol of our server: it remembers the last head of its connection."""

    _known: KnownHead | None = None
    _begun = 0
    """Messages that the parser has started."""
    _answered_s = 0.0

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._app = app = cast("ASGI3Application", self.app)  # pyright: ignore[reportUnknownMemberType]
        self._cached_app: CachedHeadApp | None = app if isinstance(app, CachedHeadApp) else None

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        if isinstance(self._served, KnownRequest):
            # The connection refers to this request and the request to the connection; nothing is called when it ends.
            self._served.on_response = ignore_response_end

    def data_received(self, data: bytes) -> None:
        if self._awaited_s is not None or (
            self.cycle is not None and not self.cycle.response_complete
        ):
            # A request or its answer is incomplete.
            super().data_received(data)
            return
        # Each request of a proxy is checked for its own client.
        known = None if self._is_forwarded else self._known
        if known is not None and len(data) == known.length and data.startswith(known.head):
            self._serve_known(known, data)
            return
        before = self._begun
        super().data_received(data)
        if self._begun == before + 1 and self._awaited_s is None:
            self._known = self._make_known_head(data)
        elif self._begun == before and self.cycle is not None:
            # Only line ends, which do not keep a connection alive.
            self._unread_bytes = 0
            self._wait_for_next()

    def on_message_begin(self) -> None:
        self._begun += 1
        super().on_message_begin()

    def on_response_complete(self) -> None:
        self._answered_s = self.loop.time()
        if self._is_forwarded or self.timeout_keep_alive_task is None or self.pipeline:
            super().on_response_complete()
            return
        # The timer of the previous answer checks the time itself: a new one for each answer costs more.
        self.server_state.total_requests += 1
        if self.flow.read_paused and not self.transport.is_closing():
            self.flow.resume_reading()

    def timeout_keep_alive_handler(self) -> None:
        self.timeout_keep_alive_task = None
        if self.cycle is not None and not self.cycle.response_complete:
            return  # its answer starts the next timer
        self._wait_for_next()

    def _wait_for_next(self) -> None:
        """Waits for the next request as long as the keep-alive time allows."""
        left_s = self._answered_s + self.timeout_keep_alive - self.loop.time()
        if left_s <= 0:
            super().timeout_keep_alive_handler()
        else:
            self.timeout_keep_alive_task = self.loop.call_later(
                left_s, self.timeout_keep_alive_handler
            )

    def _make_known_head(self, data: bytes) -> KnownHead | None:
        """What ``data``, one whole request and nothing else, shows about later ones; None: parse the head each time."""
        cycle, offer = self.cycle, self._offer
        if (
            cycle is None
            or offer is None
            or not cycle.keep_alive
            or self.scope["method"] == "CONNECT"
        ):
            return None
        if any(name in _NEVER for name, _ in self.scope["headers"]):
            return None
        size = data.find(_END) + len(_END)
        # Line ends after a message belong to no message, and the parser does not report them.
        if size + len(cycle.body) != len(data):
            return None
        scope = self.scope.copy()
        del scope["extensions"]  # they belong to this request only
        return KnownHead(data[:size], len(data), scope, offer.kept)

    def _serve_known(self, known: KnownHead, data: bytes) -> None:
        body = data[len(known.head) :]
        self.cycle = self._served = request = KnownRequest(self, known, body)
        cached_app = self._cached_app
        if cached_app is not None and known.kept.parsed is not None:
            # The handler starts work for this request only, so it gets a context of its own.
            own = self.context.copy()
            if not own.run(cached_app.handle_sync, request, body, request.receive, request.send):
                self._start_asgi_task(request, partial(cached_app.handle_async, request))
            return
        # An application that reads the scope may change it, and finds the extensions in it.
        request.scope = scope = known.scope.copy()
        scope["state"] = self.app_state.copy()
        scope["extensions"] = {ASGI_EXTENSION: RequestExtensions(request, self, known.kept)}  # type: ignore[dict-item]
        request.use_messages()
        self._start_asgi_task(request, self._app)
