"""The head of a gRPC call: metadata by name, and the other end of the connection."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import unquote

from passerelle.core.errors import InvalidInput
from passerelle.core.headers import REASON, find_repeated, join_fields

if TYPE_CHECKING:
    from collections.abc import Mapping

    import grpc.aio

    Context = grpc.aio.ServicerContext[Any, Any]

_IP: Final = ("ipv4:", "ipv6:")


@dataclass(frozen=True, slots=True)
class Head:
    """Names are lower case, and lines of one name are joined, as with HTTP headers. Binary values are left out."""

    headers: Mapping[str, str]
    address: str | None


def read_head(context: Context, proxied: str | None = None) -> Head:
    """What came along with a call."""
    headers = join_fields(_list_texts(context), proxied)
    return Head(headers, _read_address(context.peer()))


def refuse_repeated(context: Context) -> None:
    """Raises InvalidInput for a name with one value that stands there twice."""
    repeated = find_repeated([name for name, _ in _list_texts(context)])
    if repeated is not None:
        raise InvalidInput(repeated, REASON)


def _list_texts(context: Context) -> list[tuple[str, str]]:
    pairs = context.invocation_metadata() or ()
    return [(name, value) for name, value in pairs if isinstance(value, str)]


def _read_address(peer: str) -> str | None:
    """The address in ``ipv4:127.0.0.1:5000`` or ``ipv6:[::1]:5000``; None for a socket that has none."""
    kind = next((kind for kind in _IP if peer.startswith(kind)), None)
    if kind is None:
        return None
    return unquote(peer.removeprefix(kind)).rpartition(":")[0].strip("[]")
