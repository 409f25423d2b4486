"""What cards say of our edge, by the settings: who may come in and how, and what is served."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

from passerelle.a2a_mapping.cards import Edge
from passerelle.a2a_mapping.extensions import ACCEPTANCE, PERMISSION, RESUME
from passerelle.a2a_mapping.socket_frames import BINDING as SOCKET_BINDING
from passerelle.core.principal import Scope
from passerelle.gateway.auth.credentials import API_KEY_HEADER

if TYPE_CHECKING:
    from collections.abc import Mapping

    from passerelle.core.wire.json import JsonObject
    from passerelle.gateway.settings import Settings

EXTENSIONS: Final[tuple[JsonObject, ...]] = (
    {
        "uri": PERMISSION,
        "description": "An open decision on a waiting task, and the typed answer to it.",
        "required": False,
    },
    {
        "uri": RESUME,
        "description": "A cursor on every event, and a defined answer to a reader that comes back with one.",
        "required": False,
        "params": {"cursor": "sse-id"},
    },
    {
        "uri": ACCEPTANCE,
        "description": "What a task must bring before it counts as completed.",
        "required": False,
    },
)
_KEYS: Final[Mapping[str, JsonObject]] = {
    "bearer": {"httpAuthSecurityScheme": {"scheme": "bearer"}},
    "apiKey": {"apiKeySecurityScheme": {"location": "header", "name": API_KEY_HEADER}},
}
_BINDINGS: Final = {"WEBSOCKET": SOCKET_BINDING}
"""What the settings call otherwise than cards do."""
_OPENID: Final = "/.well-known/openid-configuration"
KEY_EDGE: Final = Edge(_KEYS, (Scope.CALL.value,), EXTENSIONS)
"""Callers show an API key, in either way."""
OPEN_EDGE: Final = Edge(extensions=EXTENSIONS)
"""Nobody is asked for anything."""


def make_edge(settings: Settings) -> Edge:
    """The edge of a gateway with these settings."""
    edge = OPEN_EDGE if settings.auth == "open" else replace(KEY_EDGE, schemes=_list(settings))
    return replace(
        edge,
        links=settings.card_links == "keep",
        grpc=_find_grpc(settings),
        grpc_default=settings.grpc.default_agent,
        sockets=True,
        listed=_read_listed(settings),
    )


def _read_listed(settings: Settings) -> frozenset[str] | None:
    named = settings.card.interfaces
    return None if named is None else frozenset(_BINDINGS.get(name, name) for name in named)


def _list(settings: Settings) -> dict[str, JsonObject]:
    """Every way in: keys, the tokens of each issuer, and a certificate that the proxy before us has checked."""
    schemes = {**_KEYS}
    for issuer in settings.issuers:
        where = f"{issuer.issuer.rstrip('/')}{_OPENID}"
        schemes[f"oidc-{issuer.name}"] = {
            "openIdConnectSecurityScheme": {"openIdConnectUrl": where}
        }
    if settings.proxy is not None:
        about = "A client certificate, checked by the proxy."
        schemes["mtls"] = {"mtlsSecurityScheme": {"description": about}}
    return schemes


def _find_grpc(settings: Settings) -> str | None:
    """Where gRPC callers dial, ``host:port`` as dialers expect it; None where it is not served."""
    port = settings.grpc.port
    if port is None:
        return None
    if settings.grpc.address or not port:
        # A free port is known to nobody before it is taken.
        return settings.grpc.address
    host = urlsplit(settings.public_url).hostname if settings.public_url else settings.host
    return f"[{host}]:{port}" if host and ":" in host else f"{host}:{port}"
