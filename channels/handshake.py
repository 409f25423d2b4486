"""Handshake credentials and checks, the same for every transport; each describes the request as an ASGI scope."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field, replace
from typing import TYPE_CHECKING, Final

import orjson

from passerelle.channels.origins import WebOrigins
from passerelle.core.frozen import frozen
from passerelle.core.wire.headers import REASON, find_repeated
from passerelle.protocol.frames import SUBPROTOCOL

if TYPE_CHECKING:
    from starlette.types import Scope

    from passerelle.channels.services import ChannelServices
    from passerelle.core.credentials import Credentials

_BEARER_ITEM: Final = "bearer."
_RETRY_AFTER_S: Final = 2
_FULL_RETRY_S: Final = 5


@frozen
class HandshakeRefused:
    """An HTTP error response: a problem as in RFC 9457, ``code`` for programs and ``reason`` for people."""

    status: int
    code: str
    reason: str
    headers: Mapping[str, str] = field(default_factory=dict[str, str])

    @property
    def body(self) -> bytes:
        """The problem document."""
        return orjson.dumps(
            {
                "type": f"urn:passerelle:problem:{self.code}",
                "title": self.code.replace("_", " "),
                "status": self.status,
                "code": self.code,
                "detail": self.reason,
            }
        )


PROBLEM: Final = "application/problem+json"
NOT_AN_UPGRADE: Final = HandshakeRefused(
    426,
    "upgrade_required",
    "a WebSocket upgrade is required",
    {"Upgrade": "websocket", "Connection": "Upgrade"},
)
DRAINING: Final = HandshakeRefused(
    503, "draining", "this instance shuts down", {"Retry-After": str(_RETRY_AFTER_S)}
)
FULL: Final = HandshakeRefused(
    503,
    "instance_full",
    "this instance has reached its connection limit",
    {"Retry-After": str(_FULL_RETRY_S)},
)


def judge_handshake(scope: Scope, origins: WebOrigins) -> HandshakeRefused | None:
    """Why a handshake is refused, or None. A web page's origin must be listed or of the same host (``origins``)."""
    repeated = find_repeated([name for name, _ in scope["headers"]])
    if repeated is not None:
        return HandshakeRefused(400, "invalid_input", f"{repeated} {REASON}")
    if SUBPROTOCOL not in scope.get("subprotocols", ()):
        return HandshakeRefused(400, "subprotocol", f"the subprotocol is {SUBPROTOCOL}")
    origin = _read_first(scope, b"origin")
    if origins.admits(origin, _read_first(scope, b"host")):
        return None
    return HandshakeRefused(403, "origin", "this origin is not allowed")


def read_shown(services: ChannelServices, scope: Scope) -> Credentials:
    """The credential of a handshake: a header, or a subprotocol, since a browser cannot set headers.

    Never the URL, which is written to logs.
    """
    read = services.read_credentials(scope)
    offered = None if read.bearer else _read_offered(scope)
    return read if offered is None else replace(read, bearer=offered)


def _read_first(scope: Scope, wanted: bytes) -> str | None:
    """The first header of that name."""
    pairs: list[tuple[bytes, bytes]] = scope["headers"]
    for name, value in pairs:
        if name == wanted:
            return value.decode("latin-1")
    return None


def _read_offered(scope: Scope) -> str | None:
    items: list[str] = scope.get("subprotocols", [])
    for item in items:
        if item.startswith(_BEARER_ITEM):
            return item[len(_BEARER_ITEM) :]
    return None
