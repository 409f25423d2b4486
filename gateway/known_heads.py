"""A head that was read is not read again: requests on a kept connection mostly have the same one, byte for byte.

What the parser made of it is used once more, and so is what the application made of it (``a2a.offer.Kept``). Only a
request that came alone and whole is known again, so the parser stands between two messages all the while.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final, cast

from uvicorn.protocols.http.httptools_impl import RequestResponseCycle

from passerelle.core.record import value
from passerelle.gateway.a2a.offer import OFFER
from passerelle.gateway.request_bounds import BoundedRequests, ServerOffer

if TYPE_CHECKING:
    from uvicorn._types import ASGI3Application, HTTPScope

    from passerelle.gateway.a2a.offer import Kept

_END: Final = b"\r\n\r\n"
_NEVER: Final = frozenset({b"transfer-encoding", b"expect", b"upgrade"})
"""Heads with one of these ask for more than an answer, and are read each time."""


@value
class KnownHead:
    """The head of a request that was served; ``length`` is that of the whole request in bytes."""

    head: bytes
    length: int
    scope: HTTPScope
    kept: Kept


class KnownHeads(BoundedRequests):
    """The protocol of our server: it knows the last head of its connection."""

    _known: KnownHead | None = None
    _begun = 0
    """Messages that the parser has begun."""
    _answered_s = 0.0

    def connection_lost(self, exc: Exception | None) -> None:
        self._known = self._offer = None
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self._awaited_s is not None or (
            self.cycle is not None and not self.cycle.response_complete
        ):
            # Something of a request is missing, or its answer.
            super().data_received(data)
            return
        known = self._known
        if known is not None and len(data) == known.length and data.startswith(known.head):
            self._serve_known(known, data)
            return
        before = self._begun
        super().data_received(data)
        if self._begun == before + 1 and self._awaited_s is None:
            self._known = self._learn(data)
        elif self._begun == before and self.cycle is not None:
            # Nothing but line ends, which are no sign of life.
            self._unread_bytes = 0
            self._rest()

    def on_message_begin(self) -> None:
        self._begun += 1
        super().on_message_begin()

    def on_response_complete(self) -> None:
        self._answered_s = self.loop.time()
        if self.timeout_keep_alive_task is None or self.pipeline:
            super().on_response_complete()
            return
        # The timer of the answer before looks at the time itself: a new one for each answer costs more.
        self.server_state.total_requests += 1
        if not self.transport.is_closing():
            self.flow.resume_reading()

    def timeout_keep_alive_handler(self) -> None:
        self.timeout_keep_alive_task = None
        if self.cycle is not None and not self.cycle.response_complete:
            return  # its answer starts the next timer
        self._rest()

    def _rest(self) -> None:
        """Waits for the next request as long as one may be waited for."""
        left_s = self._answered_s + self.timeout_keep_alive - self.loop.time()
        if left_s <= 0:
            super().timeout_keep_alive_handler()
        else:
            self.timeout_keep_alive_task = self.loop.call_later(
                left_s, self.timeout_keep_alive_handler
            )

    def _learn(self, data: bytes) -> KnownHead | None:
        """What ``data``, one whole request and nothing else, shows of further ones; None for a head to be read anew."""
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
        # Line ends behind a message belong to none, and the parser says nothing of them.
        if size + len(cycle.body) != len(data):
            return None
        return KnownHead(data[:size], len(data), self.scope.copy(), offer.kept)

    def _serve_known(self, known: KnownHead, data: bytes) -> None:
        scope = self.scope = known.scope.copy()
        scope["state"] = self.app_state.copy()
        self.cycle = cycle = RequestResponseCycle(
            scope=scope,
            transport=self.transport,
            flow=self.flow,
            logger=self.logger,
            access_logger=self.access_logger,
            access_log=self.access_log,
            default_headers=self.server_state.default_headers,
            message_event=asyncio.Event(),
            expect_100_continue=False,
            keep_alive=True,
            on_response=self.on_response_complete,
        )
        cycle.body += data[len(known.head) :]
        cycle.more_body = False
        cycle.message_event.set()
        self._offer = offer = ServerOffer(cycle, self, known.kept)
        scope["extensions"] = {OFFER: offer}  # type: ignore[dict-item]
        app = cast("ASGI3Application", self.app)  # pyright: ignore[reportUnknownMemberType]
        self._start_asgi_task(cycle, app)
