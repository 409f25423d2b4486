"""The channel endpoint of an instance: handshakes, connections over any transport, and their drain.

The gateway mounts it over ASGI at ``GET /v1/channel``; ``channels/fast.py`` has a port of its own. The server must
bound one message at ``Limits.inbound_bytes``, so that an unauthenticated client costs at most a timer and that much
memory (CHN-11).
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from starlette.responses import Response

from passerelle.channels.admission_queue import AdmissionQueue
from passerelle.channels.asgi import AsgiSocket
from passerelle.channels.connection import ChannelConnection
from passerelle.channels.handshake import (
    DRAINING,
    FULL,
    NOT_AN_UPGRADE,
    PROBLEM,
    judge_handshake,
    read_shown,
)
from passerelle.channels.limits import ChannelLimits
from passerelle.channels.origins import WebOrigins
from passerelle.channels.presence import PresenceBoard
from passerelle.channels.roster import Roster
from passerelle.protocol.frames import SUBPROTOCOL

if TYPE_CHECKING:
    from collections.abc import Callable

    from starlette.requests import Request
    from starlette.types import Scope
    from starlette.websockets import WebSocket

    from passerelle.channels.handshake import HandshakeRefused
    from passerelle.channels.services import ChannelServices
    from passerelle.channels.transport import Socket

_CLOSING_S: Final = 2.0


class ChannelEndpoint:
    """Over ASGI: ``WebSocketRoute("/v1/channel", endpoint.handle)``. Others call ``judge``, then ``serve``."""

    def __init__(
        self,
        services: ChannelServices,
        limits: ChannelLimits | None = None,
        origins: WebOrigins | None = None,
        on_arrival: Callable[[], None] = lambda: None,
    ) -> None:
        """``on_arrival`` is called for each accepted socket."""
        self.limits = limits or ChannelLimits()
        self._services = services
        self._origins = origins or WebOrigins()
        self._connections: set[ChannelConnection] = set()
        self._board = PresenceBoard(services.presences, self.limits.presence_interval_s)
        self._admissions = AdmissionQueue()
        self._roster = Roster(services.channels, self.limits, self._board.refresh)
        self._on_arrival = on_arrival
        self._draining = False
        self._empty = asyncio.Event()
        self._empty.set()

    @property
    def connections(self) -> int:
        """Number of served sockets, welcomed or not."""
        return len(self._connections)

    def find_lag(self) -> int:
        """The lag of the slowest reader of all connections, in events."""
        return max((connection.find_lag() for connection in self._connections), default=0)

    async def handle(self, websocket: WebSocket) -> None:
        """Serves one socket of an ASGI server from handshake to close."""
        refused = self.judge(websocket.scope)
        if refused is not None:
            await websocket.send_denial_response(_render(refused))
            return
        await websocket.accept(subprotocol=SUBPROTOCOL)
        socket = AsgiSocket(websocket.receive, websocket.send)
        await socket.serve(self.serve(socket, websocket.scope))

    async def explain(self, _request: Request) -> Response:
        """Answers requests to the path that are not a handshake."""
        return _render(NOT_AN_UPGRADE)

    def judge(self, scope: Scope) -> HandshakeRefused | None:
        """Why a handshake is refused, or None; ``scope`` is that of an ASGI WebSocket."""
        if self._draining:
            return DRAINING
        refused = judge_handshake(scope, self._origins)
        if refused is None and len(self._connections) >= self.limits.connections:
            self._services.counts.refused += 1
            return FULL
        return refused

    def serve(self, socket: Socket, scope: Scope) -> ChannelConnection:
        """Creates the connection of an accepted socket; it ends when the socket does."""
        self._on_arrival()
        shown = read_shown(self._services, scope)
        connection = ChannelConnection(
            socket,
            self._services,
            self.limits,
            shown,
            self._admissions,
            self._roster,
            self._board,
            self._leave,
        )
        self._connections.add(connection)
        self._empty.clear()
        return connection

    def recheck(self) -> None:
        """Makes every connection check its credential and rights now."""
        for connection in self._connections:
            connection.recheck()

    async def drain(self, within_ms: int = 2_000, jitter_ms: int = 5_000) -> None:
        """Refuses new sockets, asks every client to reconnect elsewhere, and returns when all are gone.

        Sockets that are left after ``within_ms + jitter_ms`` are closed with 4001, after their acks are stored.
        """
        self._draining = True
        for connection in tuple(self._connections):
            connection.drain(within_ms, jitter_ms)
        limit_s = (within_ms + jitter_ms) / 1000 + _CLOSING_S
        try:
            async with asyncio.timeout(limit_s):
                await self._empty.wait()
                await self._roster.close()
        except TimeoutError:
            return
        finally:
            await self._services.texts.close()

    def _leave(self, connection: ChannelConnection) -> None:
        self._connections.discard(connection)
        if not self._connections:
            self._empty.set()


def _render(refused: HandshakeRefused) -> Response:
    return Response(refused.body, refused.status, {**refused.headers}, PROBLEM)
