"""Cards of A2A 0.3: converted to the form of 1.0, and written for readers that know nothing newer.

A 0.3 card has one main address and further ones; 1.0 has one list. A merged card is a 1.0 card with the address members
of 0.3 as well: readers of either version find theirs.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

from passerelle.a2a_mapping.members import as_list, object_at, objects_at, text_at
from passerelle.core.wire.json import Json, JsonObject

CARD_VERSION: Final = "0.3"
FULL_VERSION: Final = "0.3.0"
ADDRESSES: Final = ("url", "preferredTransport", "protocolVersion", "additionalInterfaces")
LEGACY_MEMBERS: Final = frozenset(ADDRESSES) | {"security", "supportsAuthenticatedExtendedCard"}
_DEFAULT_TRANSPORT: Final = "JSONRPC"
_KINDS: Final[Mapping[str, str]] = {
    "apiKeySecurityScheme": "apiKey",
    "httpAuthSecurityScheme": "http",
    "oauth2SecurityScheme": "oauth2",
    "openIdConnectSecurityScheme": "openIdConnect",
    "mtlsSecurityScheme": "mutualTLS",
}
_SCHEMES: Final[Mapping[str, str]] = {kind: name for name, kind in _KINDS.items()}


def is_legacy(card: JsonObject) -> bool:
    """Whether a card is in the form of 0.3 only."""
    return not card.get("supportedInterfaces") and "url" in card


def lift_card(card: JsonObject) -> JsonObject:
    """A received card in the form of 1.0; a merged one loses the members of 0.3."""
    rest: JsonObject = {name: value for name, value in card.items() if name not in LEGACY_MEMBERS}
    if not is_legacy(card):
        return rest
    capabilities = {**object_at(card, "capabilities")}
    capabilities.pop("stateTransitionHistory", None)
    extended = card.get("supportsAuthenticatedExtendedCard")
    if isinstance(extended, bool):
        capabilities["extendedAgentCard"] = extended
    rest["capabilities"] = capabilities
    rest["supportedInterfaces"] = as_list(list(_lift_interfaces(card)))
    if "skills" in card:
        rest["skills"] = as_list([_lift_skill(skill) for skill in objects_at(card, "skills")])
    if "securitySchemes" in card:
        schemes = object_at(card, "securitySchemes")
        rest["securitySchemes"] = {name: _lift_scheme(scheme) for name, scheme in schemes.items()}
    if "security" in card:
        rest["securityRequirements"] = _lift_security(card)
    return rest


def spell_card(card: JsonObject) -> JsonObject:
    """A 0.3 card in the form of its protobuf, which has the security members of 1.0."""
    lifted = lift_card(card)
    spelled: JsonObject = {
        **card,
        "skills": as_list(
            [
                {name: value for name, value in skill.items() if name != "security"}
                for skill in objects_at(card, "skills")
            ]
        ),
    }
    for name, source in (
        ("securitySchemes", "securitySchemes"),
        ("security", "securityRequirements"),
    ):
        if source in lifted:
            spelled[name] = lifted[source]
    return spelled


def lower_card(card: JsonObject) -> JsonObject | None:
    """A 1.0 card of the gateway for readers of 0.3, or None if it lists no interface of 0.3."""
    addresses = list_addresses(card)
    if addresses is None:
        return None
    gone = {"supportedInterfaces", "securityRequirements", "signatures"}
    rest: JsonObject = {name: value for name, value in card.items() if name not in gone}
    capabilities = {**object_at(card, "capabilities")}
    extended = capabilities.pop("extendedAgentCard", False)
    lowered: JsonObject = {**rest, **addresses, "capabilities": capabilities}
    lowered["supportsAuthenticatedExtendedCard"] = extended is True
    schemes = object_at(card, "securitySchemes")
    if schemes:
        lowered["securitySchemes"] = {name: _lower_scheme(item) for name, item in schemes.items()}
        lowered["security"] = as_list(
            [
                {name: object_at(asked, name).get("list", []) for name in asked}
                for requirement in objects_at(card, "securityRequirements")
                if (asked := object_at(requirement, "schemes"))
            ]
        )
    return lowered


def list_addresses(card: JsonObject) -> JsonObject | None:
    """The address members of 0.3, from the 0.3 interfaces of a 1.0 card."""
    older = [
        entry
        for entry in objects_at(card, "supportedInterfaces")
        if text_at(entry, "protocolVersion") == CARD_VERSION
    ]
    if not older:
        return None
    further: list[Json] = [
        {"url": text_at(entry, "url"), "transport": text_at(entry, "protocolBinding")}
        for entry in older
    ]
    return {
        "url": text_at(older[0], "url"),
        "preferredTransport": text_at(older[0], "protocolBinding"),
        "protocolVersion": FULL_VERSION,
        "additionalInterfaces": further,
    }


def _lift_interfaces(card: JsonObject) -> Iterator[JsonObject]:
    version = text_at(card, "protocolVersion") or FULL_VERSION
    first = text_at(card, "preferredTransport") or _DEFAULT_TRANSPORT
    addresses = [(text_at(card, "url"), first)]
    addresses += [
        (text_at(entry, "url"), text_at(entry, "transport"))
        for entry in objects_at(card, "additionalInterfaces")
    ]
    # The main address is often repeated among the further ones.
    for url, binding in dict.fromkeys(addresses):
        yield {"url": url, "protocolBinding": binding, "protocolVersion": version}


def _lift_skill(skill: JsonObject) -> JsonObject:
    rest: JsonObject = {name: value for name, value in skill.items() if name != "security"}
    if "security" in skill:
        rest["securityRequirements"] = _lift_security(skill)
    return rest


def _lift_security(holder: JsonObject) -> list[Json]:
    return [
        {"schemes": {name: {"list": scopes} for name, scopes in asked.items()}}
        for asked in objects_at(holder, "security")
    ]


def _lift_scheme(scheme: Json) -> Json:
    if not isinstance(scheme, dict) or (name := _SCHEMES.get(text_at(scheme, "type"))) is None:
        return scheme
    members: JsonObject = {key: value for key, value in scheme.items() if key != "type"}
    if "in" in members:
        members["location"] = members.pop("in")
    return {name: members}


def _lower_scheme(scheme: Json) -> Json:
    for name, kind in _KINDS.items():
        if isinstance(scheme, dict) and isinstance(members := scheme.get(name), dict):
            lowered: JsonObject = {"type": kind, **members}
            if "location" in lowered:
                lowered["in"] = lowered.pop("location")
            return lowered
    return scheme
