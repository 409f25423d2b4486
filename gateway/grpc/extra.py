"""Starts the gRPC server if configured; its libraries are an extra and imported only then."""

from __future__ import annotations

import asyncio
import os
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Final

from passerelle.core.agent_name import ROUTER
from passerelle.core.errors import ConfigInvalid
from passerelle.protocol.concurrency import cancel_all

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from passerelle.gateway.a2a.face import Face
    from passerelle.gateway.connection_settings import ConnectionLimits
    from passerelle.gateway.server_tls import ServerTls
    from passerelle.gateway.settings.model import Settings

WITHOUT_EXTRA: Final = "gRPC needs more libraries: pip install 'passerelle[grpc]'"


@asynccontextmanager
async def open_grpc(
    settings: Settings,
    face: Face,
    tls: ServerTls | None = None,
    connections: ConnectionLimits | None = None,
) -> AsyncGenerator[int | None]:
    """Serves the operations of ``face`` over gRPC until the block ends; yields its port, or None if it is off.

    ``connections`` limits the connections.

    Raises:
        ConfigInvalid: the gateway cannot listen on the port, or the libraries are not installed.
    """
    port = settings.grpc.port
    if port is None:
        yield None
        return
    # The process never forks to continue itself; gRPC's fork handlers would only keep descriptors open.
    os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")
    try:
        from passerelle.gateway.grpc.connections import GrpcConnections
        from passerelle.gateway.grpc.face import GrpcFace
        from passerelle.gateway.grpc.server import start_grpc
    except ImportError:
        raise ConfigInvalid("grpc.port", WITHOUT_EXTRA) from None
    most = of_address = table = None
    if connections is not None:
        most, of_address = connections.grpc, connections.grpc_of_address
        table = connections.admission.table
    kept = GrpcConnections(table, of_address)
    handlers = GrpcFace(face.operations, face.parts, settings.grpc.default_agent or ROUTER, kept)
    server = await start_grpc(
        handlers, settings.host, port, tls, settings.requests.body_bytes, most
    )
    watching = asyncio.create_task(kept.watch(server.port), name="grpc.connections")
    try:
        yield server.port
    finally:
        await cancel_all([watching])
        await server.stop()
