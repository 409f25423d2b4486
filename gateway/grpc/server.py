"""The gRPC server: one port for both versions, on our own loop, ended within the shutdown of the gateway.

Plain text, as with HTTP: whoever offers it to a network puts a proxy with TLS in front.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import grpc
import grpc.aio

from passerelle.core.errors import ConfigInvalid
from passerelle.gateway.grpc.methods import SERVICES

if TYPE_CHECKING:
    from passerelle.gateway.grpc.face import GrpcFace

STOP_S: Final = 1.0
"""How long calls under way may take after everything of ours has ended."""
MESSAGE_BYTES: Final = 4 * 1024 * 1024
_OPTIONS: Final = (
    ("grpc.max_receive_message_length", MESSAGE_BYTES),
    ("grpc.max_metadata_size", 64 * 1024),
    # Two processes on one port would share its callers; the second one has to fail instead.
    ("grpc.so_reuseport", 0),
)


@dataclass(frozen=True, slots=True)
class GrpcServer:
    """A server that answers; ``port`` is the real one, also where 0 was asked for."""

    server: grpc.aio.Server
    port: int

    async def stop(self) -> None:
        """No new calls, and an end of those under way."""
        await self.server.stop(STOP_S)


async def start_grpc(face: GrpcFace, host: str, port: int) -> GrpcServer:
    """Listens and serves.

    Raises:
        ConfigInvalid: the port is taken or not allowed.
    """
    server = grpc.aio.server(options=_OPTIONS)
    server.add_generic_rpc_handlers(tuple(map(face.make_handler, SERVICES)))
    where = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    try:
        real = server.add_insecure_port(where)
    except RuntimeError:
        reason = f"{port} on {host} is in use or may not be listened on; choose another, or 0 for a free one"
        raise ConfigInvalid("grpc.port", reason) from None
    await server.start()
    return GrpcServer(server, real)
