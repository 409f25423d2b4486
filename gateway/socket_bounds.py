"""The size of WebSocket messages by what is served over the socket, and the pings of those without a heartbeat.

Until a socket is accepted it may hold no more than a channel may, whatever it is for: who asks is not known before.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol

from passerelle.a2a_mapping.socket_frames import PATH

if TYPE_CHECKING:
    from uvicorn._types import ASGISendEvent

    from passerelle.gateway.connections import Slot

PING_S: Final = 20.0


class BoundedSockets(WebSocketsSansIOProtocol):
    """uvicorn's protocol for sockets, which has the place of the connection that asked for it."""

    frame_bytes: int
    """Bounds one frame of A2A, as the body of a request."""
    is_idle = False
    """``Connection``: it is the channel of somebody, or is about to be."""
    _slot: Slot | None = None

    def take_slot(self, slot: Slot) -> None:
        """The connection is this one's from now on."""
        self._slot = slot

    def evict(self) -> None:
        """``Connection``."""
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
    """What a server parses WebSockets with."""
    return type("Sockets", (BoundedSockets,), {"frame_bytes": frame_bytes})
