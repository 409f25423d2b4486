"""The WebSocket endpoint: handshake, the connections of this instance, and their drain.

Mounted by the gateway at ``GET /v1/channel``. The server underneath must bound one message at
``Limits.inbound_bytes``, so that an unknown client costs no more than a timer and that much memory (CHN-11).
"""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

from starlette.responses import PlainTextResponse

from passerelle.channels.connection import Connection
from passerelle.channels.frames import SUBPROTOCOL
from passerelle.channels.limits import Limits
from passerelle.channels.presence import PresenceBoard
from passerelle.channels.roster import Roster
from passerelle.channels.transport import AsgiSocket

if TYPE_CHECKING:
    from collections.abc import Collection

    from starlette.websockets import WebSocket

    from passerelle.channels.services import ChannelServices
    from passerelle.core.credentials import Credentials

_BEARER_ITEM: Final = "bearer."
_RETRY_AFTER_S: Final = 2
_CLOSING_S: Final = 2.0


class ChannelEndpoint:
    """Serves WebSockets: ``WebSocketRoute("/v1/channel", endpoint.handle)``."""

    def __init__(
        self,
        services: ChannelServices,
        limits: Limits | None = None,
        origins: Collection[str] = (),
    ) -> None:
        self._services = services
        self._limits = limits or Limits()
        self._origins = frozenset(origins)
        self._connections: set[Connection] = set()
        self._board = PresenceBoard(services.presences, self._limits.presence_interval_s)
        self._roster = Roster(services.channels, self._limits, self._board.refresh)
        self._draining = False
        self._empty = asyncio.Event()
        self._empty.set()

    @property
    def connections(self) -> int:
        """How many sockets are served, greeted or not."""
        return len(self._connections)

    async def handle(self, websocket: WebSocket) -> None:
        """Serves one socket from handshake to close."""
        refusal = self._refuse(websocket)
        if refusal is not None:
            await websocket.send_denial_response(refusal)
            return
        await websocket.accept(subprotocol=SUBPROTOCOL)
        connection = Connection(
            AsgiSocket(websocket),
            self._services,
            self._limits,
            self._read_credentials(websocket),
            self._roster,
            self._board,
        )
        self._connections.add(connection)
        self._empty.clear()
        try:
            await connection.serve()
        finally:
            self._leave(connection)

    def recheck(self) -> None:
        """Has every connection look at its credential and rights now."""
        for connection in self._connections:
            connection.recheck()

    async def drain(self, within_ms: int = 2_000, jitter_ms: int = 5_000) -> None:
        """Takes no new socket, tells every client to go elsewhere, and returns when they are gone.

        Sockets that are left after ``within_ms + jitter_ms`` are closed with 4001, their acks stored before.
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

    def _refuse(self, websocket: WebSocket) -> PlainTextResponse | None:
        if self._draining:
            headers = {"retry-after": str(_RETRY_AFTER_S)}
            return PlainTextResponse("draining", 503, headers)
        if SUBPROTOCOL not in websocket.scope.get("subprotocols", []):
            return PlainTextResponse(f"the subprotocol is {SUBPROTOCOL}", 400)
        if not self._allows_origin(websocket):
            return PlainTextResponse("this origin is not allowed", 403)
        return None

    def _allows_origin(self, websocket: WebSocket) -> bool:
        """A web page must be listed or of the same host; a program sends no origin."""
        origin = websocket.headers.get("origin")
        if origin is None or origin in self._origins:
            return True
        return urlsplit(origin).netloc == websocket.headers.get("host")

    def _read_credentials(self, websocket: WebSocket) -> Credentials:
        read = self._services.read_credentials(websocket.scope)
        shown = replace(read, origin=websocket.headers.get("origin"))
        return shown if shown.bearer else replace(shown, bearer=_read_offered(websocket))

    def _leave(self, connection: Connection) -> None:
        self._connections.discard(connection)
        if not self._connections:
            self._empty.set()


def _read_offered(websocket: WebSocket) -> str | None:
    """The bearer among the subprotocols: a browser can set no header. Never out of the URL, which ends up in logs."""
    offered: list[str] = websocket.scope.get("subprotocols", [])
    for item in offered:
        if item.startswith(_BEARER_ITEM):
            return item[len(_BEARER_ITEM) :]
    return None
