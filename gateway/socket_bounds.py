"""The size of WebSocket messages by what is served over the socket, and the pings of those without a heartbeat.

Until a socket is accepted it may hold no more than a channel may, whatever it is for: who asks is not known before.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol

from passerelle.a2a_mapping.socket_frames import PATH

if TYPE_CHECKING:
    from uvicorn._types import ASGISendEvent

PING_S: Final = 20.0


def make_socket_protocol(frame_bytes: int) -> type[WebSocketsSansIOProtocol]:
    """What a server parses WebSockets with; ``frame_bytes`` bounds one frame of A2A, as the body of a request."""

    class BoundedSockets(WebSocketsSansIOProtocol):
        async def send(self, message: ASGISendEvent) -> None:
            if message["type"] == "websocket.accept" and self.scope["path"].endswith(PATH):
                self.conn.max_message_size = frame_bytes
                self.ping_interval = self.ping_timeout = PING_S
            await super().send(message)

    return BoundedSockets
