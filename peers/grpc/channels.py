"""gRPC channels to peers: one for each address and identity, shared by all peers there."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING, Final

import grpc
import grpc.aio

from passerelle.core.errors import ConfigInvalid, Draining
from passerelle.core.wire.display import explain_error

if TYPE_CHECKING:
    from passerelle.peers.config import Tls
    from passerelle.peers.interface import Security

MAX_MESSAGE_BYTES: Final = 24 * 1024 * 1024
_OPTIONS: Final = (
    ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
    ("grpc.max_send_message_length", -1),
    ("grpc.max_metadata_size", 64 * 1024),
    # No proxy from the environment, and no retries by the library.
    ("grpc.enable_http_proxy", 0),
    ("grpc.enable_retries", 0),
    ("grpc.initial_reconnect_backoff_ms", 500),
    ("grpc.max_reconnect_backoff_ms", 5_000),
    # A host that vanished sends nothing.
    ("grpc.keepalive_time_ms", 30_000),
    ("grpc.keepalive_timeout_ms", 10_000),
)


class GrpcChannels:
    """Opens channels on first use."""

    def __init__(self) -> None:
        self._open: dict[tuple[str, Tls | None], grpc.aio.Channel] = {}
        self._closed = False

    def open(self, origin: str, tls: Tls | None) -> grpc.aio.Channel:
        """The channel to an origin; with TLS if its scheme is https.

        Raises:
            Draining: after ``close``.
            ConfigInvalid: a certificate cannot be read.
        """
        if self._closed:
            raise Draining("the gateway is shutting down and calls no agents")
        channel = self._open.get((origin, tls))
        if channel is None:
            channel = self._open[origin, tls] = _start(origin, tls)
        return channel

    async def close(self) -> None:
        """Closes all channels, including those in use."""
        self._closed = True
        while self._open:
            _, channel = self._open.popitem()
            await channel.close()


def _start(origin: str, tls: Tls | None) -> grpc.aio.Channel:
    scheme, _, target = origin.partition("://")
    if scheme == "http":
        return grpc.aio.insecure_channel(target, options=_OPTIONS)
    port = "" if ":" in target.rpartition("]")[2] else ":443"
    root, cert, key = (
        _read(path) for path in ((tls.ca, tls.cert, tls.key or tls.cert) if tls else (None,) * 3)
    )
    credentials = grpc.ssl_channel_credentials(root, key, cert)
    return grpc.aio.secure_channel(f"{target}{port}", credentials, options=_OPTIONS)


def _read(path: str | None) -> bytes | None:
    try:
        return Path(path).read_bytes() if path else None
    except OSError as error:
        raise ConfigInvalid("agents.tls", explain_error(error)) from None


async def find_security(origin: str, tls: Tls | None, within_s: float) -> Security | None:
    """How gRPC is spoken at an address: tries the scheme of ``origin``, then the other one; None: no connection.

    Raises:
        ConfigInvalid: a certificate cannot be read.
    """
    scheme, _, target = origin.partition("://")
    for one in (scheme, "http" if scheme == "https" else "https"):
        channel = _start(f"{one}://{target}", tls)
        try:
            if await connect(channel, within_s):
                return "plaintext" if one == "http" else "tls"
        finally:
            await channel.close()
    return None


async def connect(channel: grpc.aio.Channel, within_s: float) -> bool:
    """Whether there is a connection: a call on a channel without one cannot report whether it was sent."""
    try:
        async with asyncio.timeout(within_s):
            while True:
                state = channel.get_state(try_to_connect=True)
                if state is grpc.ChannelConnectivity.READY:
                    return True
                if state is grpc.ChannelConnectivity.TRANSIENT_FAILURE:
                    return False
                await channel.wait_for_state_change(state)
    except TimeoutError:
        return False
