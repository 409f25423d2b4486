"""The head of a gRPC call: metadata by name, and the other end of the connection."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import unquote

if TYPE_CHECKING:
    from collections.abc import Mapping

    import grpc.aio

    Context = grpc.aio.ServicerContext[Any, Any]

_IP: Final = ("ipv4:", "ipv6:")


@dataclass(frozen=True, slots=True)
class Head:
    """Names are lower case; of a repeated one the last counts, as with HTTP headers. Binary values are left out."""

    headers: Mapping[str, str]
    address: str | None


def read_head(context: Context) -> Head:
    """What came along with a call."""
    pairs = context.invocation_metadata() or ()
    headers = {key.lower(): value for key, value in pairs if isinstance(value, str)}
    return Head(headers, _read_address(context.peer()))


def _read_address(peer: str) -> str | None:
    """The address in ``ipv4:127.0.0.1:5000`` or ``ipv6:[::1]:5000``; None for a socket that has none."""
    kind = next((kind for kind in _IP if peer.startswith(kind)), None)
    if kind is None:
        return None
    return unquote(peer.removeprefix(kind)).rpartition(":")[0].strip("[]")
