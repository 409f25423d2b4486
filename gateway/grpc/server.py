"""The gRPC server: one port for both versions, on the gateway's loop, stopped within the gateway's shutdown."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import grpc
import grpc.aio

from passerelle.core.errors import ConfigInvalid
from passerelle.core.frozen import frozen
from passerelle.peers.grpc.methods import SERVICES

if TYPE_CHECKING:
    from passerelle.gateway.grpc.face import GrpcFace
    from passerelle.gateway.server_tls import KeyPair, ServerTls

HANDSHAKE_MS: Final = 15_000
"""From a connection to the end of its handshakes, including HTTP/2; as long as an HTTP head may take."""
IDLE_MS: Final = 75_000
"""A connection without a call is closed after that, like one over HTTP. One with a call is not idle."""
STOP_S: Final = 1.0
"""How long calls in progress may take after everything else has stopped."""
MESSAGE_BYTES: Final = 25_165_824
_OPTIONS: Final = (
    ("grpc.max_metadata_size", 64 * 1024),
    # Two processes on one port would share its callers; the second one must fail instead.
    ("grpc.so_reuseport", 0),
)


@frozen
class GrpcServer:
    """A running server; ``port`` is the real one, also where the setting is 0."""

    server: grpc.aio.Server
    port: int

    async def stop(self) -> None:
        """Rejects new calls, and ends those in progress."""
        await self.server.stop(STOP_S)


async def start_grpc(
    face: GrpcFace,
    host: str,
    port: int,
    tls: ServerTls | None = None,
    message_bytes: int = MESSAGE_BYTES,
    connections: int | None = None,
) -> GrpcServer:
    """Listens and serves; with ``tls`` nothing in plain text. ``message_bytes`` limits a request.

    Beyond ``connections`` the newest are closed; None: no limit.

    Raises:
        ConfigInvalid: the port is in use or not allowed.
    """
    bounds = [
        ("grpc.max_receive_message_length", message_bytes),
        ("grpc.server_handshake_timeout_ms", HANDSHAKE_MS),
        ("grpc.max_connection_idle_ms", IDLE_MS),
    ]
    if connections is not None:
        bounds.append(("grpc.max_allowed_incoming_connections", connections))
    server = grpc.aio.server(options=(*_OPTIONS, *bounds))
    server.add_generic_rpc_handlers(tuple(map(face.make_handler, SERVICES)))
    where = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    try:
        if tls is None:
            real = server.add_insecure_port(where)
        else:
            real = server.add_secure_port(where, _Handshakes(tls).credentials)
    except RuntimeError:
        reason = f"{port} on {host} is in use or not allowed; choose another, or 0 for a free one"
        raise ConfigInvalid("grpc.port", reason) from None
    await server.start()
    return GrpcServer(server, real)


class _Handshakes:
    """Gives each handshake the current certificate; the library calls it from its own thread."""

    def __init__(self, tls: ServerTls) -> None:
        self._tls = tls
        self._shown = tls.pair
        self.credentials: Final = grpc.dynamic_ssl_server_credentials(
            _configure(tls.pair),
            self._renew,  # type: ignore[arg-type]  # the library takes None too, and says so in words
            require_client_authentication=False,
        )

    def _renew(self) -> grpc.ServerCertificateConfiguration | None:
        """None if the certificate has not changed."""
        pair = self._tls.pair
        if pair is self._shown:
            return None
        self._shown = pair
        return _configure(pair)


def _configure(pair: KeyPair) -> grpc.ServerCertificateConfiguration:
    return grpc.ssl_server_certificate_configuration([(pair.key, pair.cert)])
