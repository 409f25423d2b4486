"""Agent cards: a peer's card made into ours. Which interface of a peer is called is its client's business.

The card that we serve tells the truth about the gateway, not about the peer: our interfaces, what our
edge asks for, what we can do. Everything else of the peer's card passes, fields that nobody here knows
included. No string may still lead to the peer, except those that point at its documentation, icon and
provider.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal, TypeAlias

import orjson

from passerelle.a2a_mapping.members import as_list, objects_at, text_at
from passerelle.a2a_mapping.origins import read_origin, replace_origins
from passerelle.core.json import Json, JsonObject

EdgeAuth: TypeAlias = Literal["open", "bearer"]
PROTOCOL_VERSION: Final = "1.0"
BINDINGS: Final = ("JSONRPC", "HTTP+JSON")
"""What we serve, the preferred one first."""

_POINTS_AT_PEER: Final = ("documentationUrl", "iconUrl", "provider")
_REPLACED: Final = frozenset(
    {
        "supportedInterfaces",
        "securitySchemes",
        "securityRequirements",
        "capabilities",
        "signatures",
        # Where a 0.3 card keeps its addresses and its auth.
        "url",
        "preferredTransport",
        "additionalInterfaces",
        "protocolVersion",
        "security",
        "supportsAuthenticatedExtendedCard",
    }
)


@dataclass(frozen=True, slots=True)
class ServedCard:
    """A card as it goes out: its bytes, and the strong ETag that is made from them."""

    card: JsonObject
    body: bytes
    etag: str


def rewrite_card(
    card: JsonObject,
    card_url: str,
    base_url: str,
    auth: EdgeAuth,
    extensions: Sequence[JsonObject] = (),
) -> ServedCard:
    """The peer's 1.0 card as ours.

    ``card_url`` is where the peer's card was read, ``base_url`` where this agent is served, without a
    slash at the end. ``extensions`` are AgentExtension objects of ours; of the peer's own none is listed,
    since none is forwarded.
    """
    rest: JsonObject = {name: value for name, value in card.items() if name not in _REPLACED}
    skills = [
        {name: value for name, value in skill.items() if name != "securityRequirements"}
        for skill in objects_at(card, "skills")
    ]
    pointers: JsonObject = {name: rest.pop(name) for name in _POINTS_AT_PEER if name in rest}
    cleaned = replace_origins(
        {**rest, "skills": as_list(skills)}, list_origins(card, card_url), base_url
    )
    served: JsonObject = {
        **(cleaned if isinstance(cleaned, dict) else {}),
        **pointers,
        "supportedInterfaces": list_interfaces(base_url),
        "capabilities": {
            "streaming": True,
            "pushNotifications": False,
            "extendedAgentCard": False,
            "extensions": as_list(list(extensions)),
        },
        **_demand(auth),
    }
    served["version"] = f"{text_at(card, 'version') or '0'}+{_hash(orjson.dumps(served))[:8]}"
    return encode_card(served)


def encode_card(card: JsonObject) -> ServedCard:
    """The bytes of a card with their ETag."""
    body = orjson.dumps(card)
    return ServedCard(card, body, f'"{_hash(body)[:32]}"')


def list_interfaces(base_url: str) -> list[Json]:
    """Our interfaces under ``base_url``; many clients take the first one per binding."""
    return [
        {"url": base_url, "protocolBinding": binding, "protocolVersion": PROTOCOL_VERSION}
        for binding in BINDINGS
    ]


def list_origins(card: JsonObject, card_url: str) -> set[str]:
    """Every origin under which the peer can be reached, by its card."""
    urls = [card_url, text_at(card, "url")]
    for name in ("supportedInterfaces", "additionalInterfaces"):
        urls += [text_at(interface, "url") for interface in objects_at(card, name)]
    return {origin for origin in map(read_origin, urls) if origin is not None}


def _demand(auth: EdgeAuth) -> JsonObject:
    if auth == "open":
        return {}
    return {
        "securitySchemes": {"bearer": {"httpAuthSecurityScheme": {"scheme": "bearer"}}},
        "securityRequirements": [{"schemes": {"bearer": {"list": []}}}],
    }


def _hash(body: bytes) -> str:
    return hashlib.sha256(body).hexdigest()
