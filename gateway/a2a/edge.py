"""What cards say of our edge, by the settings: who may come in and how, and what is served."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from passerelle.a2a_mapping.cards import Edge
from passerelle.a2a_mapping.extensions import PERMISSION, RESUME
from passerelle.core.principal import Scope
from passerelle.gateway.auth.credentials import API_KEY_HEADER

if TYPE_CHECKING:
    from collections.abc import Mapping

    from passerelle.core.json import JsonObject
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
)
_KEYS: Final[Mapping[str, JsonObject]] = {
    "bearer": {"httpAuthSecurityScheme": {"scheme": "bearer"}},
    "apiKey": {"apiKeySecurityScheme": {"location": "header", "name": API_KEY_HEADER}},
}
KEY_EDGE: Final = Edge(_KEYS, (Scope.CALL.value,), EXTENSIONS)
"""Callers show an API key, in either way."""
OPEN_EDGE: Final = Edge(extensions=EXTENSIONS)
"""Nobody is asked for anything."""


def make_edge(settings: Settings) -> Edge:
    """The edge of a gateway with these settings."""
    edge = OPEN_EDGE if settings.auth == "open" else KEY_EDGE
    return Edge(
        schemes=edge.schemes,
        scopes=edge.scopes,
        extensions=edge.extensions,
        links=settings.card_links == "keep",
    )
