"""The signed payload of a card: its canonical bytes (A2A 1.0 section 8.4.1).

Default values are left out, except those of required fields and of optional fields that were set. So a parsed card and
the original have the same bytes. Unknown members stay.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from typing import Final

from passerelle.core.frozen import frozen
from passerelle.core.wire.canonical import canonicalize
from passerelle.core.wire.json import Json, JsonObject


@frozen
class MessageKind:
    """A protobuf message of the protocol: its optional fields, and the messages in its fields.

    ``implicit`` fields have no presence: empty equals absent. ``messages`` are fields that hold a message, or a list or
    a map of them. Every other known field is required, or present only if it was set.
    """

    implicit: frozenset[str] = frozenset()
    messages: Mapping[str, MessageKind] = field(default_factory=dict[str, "MessageKind"])
    maps: frozenset[str] = frozenset()
    """Those of ``messages`` that are maps with free keys."""


_STRINGS: Final = MessageKind(frozenset({"list"}))
_REQUIREMENT: Final = MessageKind(
    frozenset({"schemes"}), {"schemes": _STRINGS}, frozenset({"schemes"})
)
_FLOWS: Final = MessageKind(
    messages={
        "authorizationCode": MessageKind(frozenset({"refreshUrl", "pkceRequired"})),
        "clientCredentials": MessageKind(frozenset({"refreshUrl"})),
        "implicit": MessageKind(frozenset({"authorizationUrl", "refreshUrl", "scopes"})),
        "password": MessageKind(frozenset({"tokenUrl", "refreshUrl", "scopes"})),
        "deviceCode": MessageKind(frozenset({"refreshUrl"})),
    }
)
_SCHEME: Final = MessageKind(
    messages={
        "apiKeySecurityScheme": MessageKind(frozenset({"description"})),
        "httpAuthSecurityScheme": MessageKind(frozenset({"description", "bearerFormat"})),
        "oauth2SecurityScheme": MessageKind(
            frozenset({"description", "oauth2MetadataUrl"}), {"flows": _FLOWS}
        ),
        "openIdConnectSecurityScheme": MessageKind(frozenset({"description"})),
        "mtlsSecurityScheme": MessageKind(frozenset({"description"})),
    }
)
_CAPABILITIES: Final = MessageKind(
    frozenset({"extensions"}),
    {"extensions": MessageKind(frozenset({"uri", "description", "required"}))},
)
_SKILL: Final = MessageKind(
    frozenset({"examples", "inputModes", "outputModes", "securityRequirements"}),
    {"securityRequirements": _REQUIREMENT},
)
CARD: Final = MessageKind(
    frozenset({"securitySchemes", "securityRequirements", "signatures"}),
    {
        "supportedInterfaces": MessageKind(frozenset({"tenant"})),
        "provider": MessageKind(),
        "capabilities": _CAPABILITIES,
        "securitySchemes": _SCHEME,
        "securityRequirements": _REQUIREMENT,
        "skills": _SKILL,
    },
    frozenset({"securitySchemes"}),
)
"""AgentCard with all nested messages; free objects (``params``) are taken unchanged."""


def render_payload(card: JsonObject) -> bytes:
    """The bytes that a signature of a 1.0 card covers.

    Raises:
        InvalidInput: the card has no canonical form, for example a whole number beyond 2^53.
    """
    return canonicalize(_prune(without_signatures(card), CARD))


def list_payloads(card: JsonObject) -> list[bytes]:
    """The payloads that a signature of a received card may cover, in the order to try.

    The form of the specification; the card as received, which 0.3 signed; and the form without any empty value, which
    the Python SDK signs (1.3: it drops empty required fields too). Each covers all content of the card.

    Raises:
        InvalidInput: the card has no canonical form.
    """
    bare = without_signatures(card)
    pruned = _prune(bare, CARD)
    forms: list[Json] = [pruned, bare, _drop_empty(pruned)]
    return list(dict.fromkeys(canonicalize(form) for form in forms))


def without_signatures(card: JsonObject) -> JsonObject:
    """A copy without them; they cover the card without members that were merged into it."""
    return {name: value for name, value in card.items() if name != "signatures"}


def _prune(message: JsonObject, kind: MessageKind) -> JsonObject:
    kept: JsonObject = {}
    for name, value in message.items():
        below = kind.messages.get(name)
        pruned = value if below is None else _prune_member(value, below, name in kind.maps)
        if pruned is None or (name in kind.implicit and not pruned):
            continue
        kept[name] = pruned
    return kept


def _prune_member(value: Json, kind: MessageKind, is_map: bool) -> Json:  # noqa: FBT001  data of the table
    match value:
        case list():
            return [_prune_member(item, kind, is_map=False) for item in value]
        case dict() if is_map:
            return {name: _prune_member(item, kind, is_map=False) for name, item in value.items()}
        case dict():
            return _prune(value, kind)
        case _:
            return value


def _drop_empty(value: Json) -> Json:
    match value:
        case dict():
            members = {name: _drop_empty(member) for name, member in value.items()}
            return {name: member for name, member in members.items() if member is not None} or None
        case list():
            items = [_drop_empty(item) for item in value]
            return [item for item in items if item is not None] or None
        case "":
            return None
        case _:
            return value
