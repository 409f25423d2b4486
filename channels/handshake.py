"""What a handshake shows and how it is judged, the same for every back-end; each describes it as an ASGI scope."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

from starlette.datastructures import Headers

from passerelle.channels.frames import SUBPROTOCOL

if TYPE_CHECKING:
    from starlette.types import Scope

    from passerelle.channels.services import ChannelServices
    from passerelle.core.credentials import Credentials

_BEARER_ITEM: Final = "bearer."
_RETRY_AFTER_S: Final = 2


@dataclass(frozen=True, slots=True)
class Refused:
    """An answer in HTTP, for people."""

    status: int
    reason: str
    headers: Mapping[str, str] = field(default_factory=dict[str, str])


NOT_AN_UPGRADE: Final = Refused(
    426, "this is a WebSocket", {"Upgrade": "websocket", "Connection": "Upgrade"}
)
DRAINING: Final = Refused(503, "draining", {"Retry-After": str(_RETRY_AFTER_S)})


def judge_handshake(scope: Scope, origins: Collection[str]) -> Refused | None:
    """Why a handshake cannot be served, or None. A web page must be listed or of the same host (``origins``)."""
    if SUBPROTOCOL not in _read_subprotocols(scope):
        return Refused(400, f"the subprotocol is {SUBPROTOCOL}")
    headers = Headers(scope=scope)
    origin = headers.get("origin")
    if origin is None or origin in origins or _is_same_host(origin, headers.get("host")):
        return None
    return Refused(403, "this origin is not allowed")


def read_shown(services: ChannelServices, scope: Scope) -> Credentials:
    """The credential that a handshake shows: in a header, or as a subprotocol, since a browser can set no header.

    Never out of the URL, which ends up in logs.
    """
    read = services.read_credentials(scope)
    shown = replace(read, origin=Headers(scope=scope).get("origin"))
    return shown if shown.bearer else replace(shown, bearer=_read_offered(scope))


def _is_same_host(origin: str, host: str | None) -> bool:
    try:
        return urlsplit(origin).netloc == host
    except ValueError:
        return False


def _read_offered(scope: Scope) -> str | None:
    for item in _read_subprotocols(scope):
        if item.startswith(_BEARER_ITEM):
            return item[len(_BEARER_ITEM) :]
    return None


def _read_subprotocols(scope: Scope) -> list[str]:
    offered: list[str] = scope.get("subprotocols", [])
    return offered
