"""The head of a gRPC call: metadata by name, and the remote end of the connection."""

from __future__ import annotations

from ipaddress import ip_address
from typing import TYPE_CHECKING, Any, Final, TypeAlias
from urllib.parse import unquote

from passerelle.core.errors import InvalidInput
from passerelle.core.frozen import frozen
from passerelle.core.wire.headers import REASON, find_repeated, join_fields

if TYPE_CHECKING:
    from collections.abc import Mapping

    import grpc.aio

    Context = grpc.aio.ServicerContext[Any, Any]

GrpcPeer: TypeAlias = tuple[str, int]
"""Address and port of the remote end of a connection."""
_IP: Final = ("ipv4:", "ipv6:")


@frozen
class GrpcHead:
    """Names are lower case, and values of one name are joined, as with HTTP headers. Binary values are omitted."""

    headers: Mapping[str, str]
    peer: GrpcPeer | None

    @property
    def address(self) -> str | None:
        """The address of the remote end."""
        return None if self.peer is None else self.peer[0]


def read_head(context: Context, proxied: str | None = None) -> GrpcHead:
    """Reads the head of a call."""
    headers = join_fields(list_texts(context), proxied)
    return GrpcHead(headers, read_peer(context.peer()))


def refuse_repeated(context: Context) -> None:
    """Raises InvalidInput if a single-value name occurs twice."""
    repeated = find_repeated([name for name, _ in list_texts(context)])
    if repeated is not None:
        raise InvalidInput(repeated, REASON)


def list_texts(context: Context) -> list[tuple[str, str]]:
    """Names with their values, as received."""
    pairs = context.invocation_metadata() or ()
    return [(name, value) for name, value in pairs if isinstance(value, str)]


def read_peer(peer: str) -> GrpcPeer | None:
    """Parses ``ipv4:127.0.0.1:5000`` or ``ipv6:[::1]:5000``; None for a socket without an address."""
    kind = next((kind for kind in _IP if peer.startswith(kind)), None)
    if kind is None:
        return None
    address, _, port = unquote(peer.removeprefix(kind)).rpartition(":")
    return make_peer(address.strip("[]"), int(port))


def make_peer(address: str, port: int) -> GrpcPeer:
    """One name for the remote end, whether its socket is IPv4 or IPv6."""
    try:
        found = ip_address(address)
    except ValueError:
        return address, port
    return str(getattr(found, "ipv4_mapped", None) or found), port
