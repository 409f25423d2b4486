"""Agent cards: a peer's card made into ours, in the shape that its reader asks for.

The shapes are that of 1.0, that of 0.3, and both merged, for whoever does not say a version. Which interface of a peer
is called is its client's business.

The card that we serve tells the truth about the gateway, not about the peer: our interfaces, what our edge asks for,
what we can do. Everything else of the peer's card passes, fields that nobody here knows included. No string may still
lead to the peer, except those that point at its documentation, icon and provider and the names of its extensions, and
these only where links are kept.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final, Literal, TypeAlias, assert_never

import orjson

from passerelle.a2a_mapping.extensions import INTERFACES, PREFIX, UNDERSTOOD
from passerelle.a2a_mapping.members import as_list, object_at, objects_at, text_at
from passerelle.a2a_mapping.origins import read_origin, replace_origins
from passerelle.a2a_mapping.socket_frames import BINDING as SOCKET_BINDING
from passerelle.a2a_mapping.socket_frames import PATH as SOCKET_PATH
from passerelle.a2a_mapping.v0_3.cards import CARD_VERSION as LEGACY
from passerelle.a2a_mapping.v0_3.cards import LEGACY_MEMBERS, lift_card, list_addresses, lower_card
from passerelle.a2a_mapping.version import SERVED
from passerelle.core.agent_name import SEPARATOR, find_tenant
from passerelle.core.wire.json import Json, JsonObject

CardShape: TypeAlias = Literal["v1", "v0.3", "merged"]


def choose_shape(version: str | None, unset: CardShape) -> CardShape:
    """The shape for what a reader says in ``A2A-Version``; a card is read before versions are agreed on.

    So a version that is not served is no error here: the card is what says which ones are.
    """
    asked = (version or "").strip()
    if not asked:
        return unset
    return "v0.3" if asked == LEGACY or asked.startswith(f"{LEGACY}.") else "v1"


def shape_card(card: JsonObject, shape: CardShape) -> JsonObject:
    """A 1.0 card of ours in a shape. Where no interface of 0.3 is served all shapes are that of 1.0."""
    match shape:
        case "v1":
            return card
        case "v0.3":
            return lower_card(card) or card
        case "merged":
            addresses = list_addresses(card)
            return card if addresses is None else {**_without_signatures(card), **addresses}
        case _:
            assert_never(shape)


def _without_signatures(card: JsonObject) -> JsonObject:
    """They cover the card without what is merged into it."""
    return {name: value for name, value in card.items() if name != "signatures"}


BINDINGS: Final = ("JSONRPC", "HTTP+JSON")
"""What every agent is served over, the preferred one first."""
EVERY_BINDING: Final = frozenset({*BINDINGS, "GRPC", SOCKET_BINDING})

_POINTS_AT_PEER: Final = ("documentationUrl", "iconUrl", "provider")
_REPLACED: Final = LEGACY_MEMBERS | {
    "supportedInterfaces",
    "securitySchemes",
    "securityRequirements",
    "capabilities",
    "signatures",
}


@dataclass(frozen=True, slots=True)
class PublicEdge:
    """What our edge is, the same on every card.

    ``schemes`` are SecurityScheme objects of 1.0 by name, any one of which is enough, and ``scopes`` what a caller
    needs of them. ``grpc`` is ``host:port``; ``grpc_default`` is the agent that calls without a tenant reach, since
    those of 0.3 have none. ``links``: whether what points at the peer on purpose stays.
    """

    schemes: Mapping[str, JsonObject] = field(default_factory=dict[str, JsonObject])
    scopes: tuple[str, ...] = ()
    extensions: tuple[JsonObject, ...] = ()
    push: bool = False
    extended: bool = False
    grpc: str | None = None
    grpc_default: str | None = None
    links: bool = True
    sockets: bool = False
    """Whether A2A is served over WebSocket too, which is a binding of our own."""
    listed: frozenset[str] | None = None
    """The bindings that stand on cards. None: those at the origin of the card.

    Clients refuse a whole card for one interface elsewhere (google-adk), or in a scheme that they do not know.
    """
    versions: tuple[str, ...] = SERVED


@dataclass(frozen=True, slots=True)
class AgentAddress:
    """Where an agent is: ``card_url`` its own card, ``base_url`` our face of it, without a slash at the end."""

    agent: str
    card_url: str
    base_url: str


def rewrite_card(card: JsonObject, place: AgentAddress, edge: PublicEdge) -> JsonObject:
    """The peer's card, of 1.0 or 0.3, as ours in the form of 1.0, without signatures."""
    lifted = lift_card(card)
    rest: JsonObject = {name: value for name, value in lifted.items() if name not in _REPLACED}
    pointers: JsonObject = {name: rest.pop(name) for name in _POINTS_AT_PEER if name in rest}
    rest["skills"] = as_list(list(_clean_skills(lifted)))
    origins = list_origins(card, place.card_url)
    cleaned = replace_origins(rest, origins, place.base_url)
    shown, further = split_interfaces(place, edge)
    served: JsonObject = {
        **(cleaned if isinstance(cleaned, dict) else {}),
        **(pointers if edge.links else {}),
        "supportedInterfaces": shown,
        "capabilities": {
            "streaming": True,
            "pushNotifications": edge.push,
            "extendedAgentCard": edge.extended,
            "extensions": [
                *edge.extensions,
                *_declare_further(further),
                *_pass_extensions(lifted, origins, place, edge),
            ],
        },
        **_demand(edge),
    }
    served["version"] = _mark_version(text_at(lifted, "version"), served)
    return served


def list_interfaces(place: AgentAddress, edge: PublicEdge) -> list[Json]:
    """Our interfaces of one agent. All of 1.0 stand before those of 0.3: clients take the first one per binding."""
    listed: list[Json] = []
    tenant = find_tenant(place.agent)
    for version in sorted(edge.versions, reverse=True):
        if tenant is None or version == LEGACY:
            listed += [_describe(place.base_url, binding, version) for binding in BINDINGS]
        else:
            # Whoever follows the card puts the tenant into path or params itself (A2A 1.0 section 8.3.1).
            url = place.base_url.removesuffix(f"{SEPARATOR}{tenant}")
            listed += [
                {**_describe(url, binding, version), "tenant": tenant} for binding in BINDINGS
            ]
        # A call of 0.3 over gRPC cannot name its agent: there is no tenant in it.
        if edge.grpc and (version != LEGACY or place.agent == edge.grpc_default):
            named: JsonObject = {} if version == LEGACY else {"tenant": place.agent}
            listed.append({**_describe(edge.grpc, "GRPC", version), **named})
        if edge.sockets and version != LEGACY:
            listed.append(_describe(_find_socket(place.base_url), SOCKET_BINDING, version))
    return listed


def split_interfaces(place: AgentAddress, edge: PublicEdge) -> tuple[list[Json], list[Json]]:
    """Those of our interfaces that stand on the card of an agent, and the further ones."""
    shown: list[Json] = []
    further: list[Json] = []
    for interface in list_interfaces(place, edge):
        named = object_at({"": interface}, "")
        (shown if _is_listed(named, place, edge) else further).append(interface)
    return shown, further


def _is_listed(interface: JsonObject, place: AgentAddress, edge: PublicEdge) -> bool:
    binding = text_at(interface, "protocolBinding")
    if edge.listed is not None:
        return binding in edge.listed
    if binding in BINDINGS:
        return True
    # Compared as a dialer reads it, which knows host and port alone.
    return binding == "GRPC" and read_origin(f"{_read_scheme(place)}://{edge.grpc}") == read_origin(
        place.base_url
    )


def _read_scheme(place: AgentAddress) -> str:
    return place.base_url.partition("://")[0]


def _declare_further(further: list[Json]) -> Iterator[JsonObject]:
    """What stands on the card of readers that ask for it."""
    if further:
        yield {
            "uri": INTERFACES,
            "description": "Further interfaces. They stand on the card of readers that activate this extension.",
            "required": False,
            "params": {"interfaces": further},
        }


def list_further(card: JsonObject) -> list[JsonObject]:
    """The interfaces that a card names in the params of our extension."""
    return [
        interface
        for extension in objects_at(object_at(card, "capabilities"), "extensions")
        if text_at(extension, "uri") == INTERFACES
        for interface in objects_at(object_at(extension, "params"), "interfaces")
    ]


def _find_socket(base_url: str) -> str:
    """Where the socket of an agent is; an address without a scheme stays one."""
    scheme, colon, rest = base_url.partition("://")
    found = f"{scheme.replace('http', 'ws', 1)}{colon}{rest}" if colon else base_url
    return f"{found}{SOCKET_PATH}"


def list_origins(card: JsonObject, card_url: str) -> set[str]:
    """Every origin under which the peer can be reached, by its card."""
    urls = [card_url, text_at(card, "url")]
    for name in ("supportedInterfaces", "additionalInterfaces"):
        urls += [text_at(interface, "url") for interface in objects_at(card, name)]
    # An address of gRPC has no scheme (A2A 1.0 section 8.3, as dialers expect it).
    spelled = (url if "://" in url else f"grpc://{url}" for url in urls if url)
    return {origin for origin in map(read_origin, spelled) if origin is not None}


def hash_bytes(body: bytes) -> str:
    """The SHA-256 of a card's bytes, in hex."""
    return hashlib.sha256(body).hexdigest()


def _describe(url: str, binding: str, version: str) -> JsonObject:
    return {"url": url, "protocolBinding": binding, "protocolVersion": version}


def _clean_skills(card: JsonObject) -> Iterator[JsonObject]:
    """Whom a skill asks for credentials is said by our edge, the same for all of them."""
    for skill in objects_at(card, "skills"):
        yield {name: value for name, value in skill.items() if name != "securityRequirements"}


def _pass_extensions(
    card: JsonObject, origins: set[str], place: AgentAddress, edge: PublicEdge
) -> Iterator[JsonObject]:
    """The peer's extensions: what is asked for by these names is forwarded. Those that are ours end here.

    No caller has to know of one that is activated for it.
    """
    for extension in objects_at(object_at(card, "capabilities"), "extensions"):
        uri = text_at(extension, "uri")
        cleaned = replace_origins(extension, origins, place.base_url)
        if not uri or uri.startswith(PREFIX) or not isinstance(cleaned, dict):
            continue
        if cleaned["uri"] == uri or edge.links:
            # A name is no address: another one would be another extension.
            known: JsonObject = {"required": False} if uri in UNDERSTOOD else {}
            yield {**cleaned, "uri": uri, **known}


def _demand(edge: PublicEdge) -> JsonObject:
    if not edge.schemes:
        return {}
    # Scopes are named for every kind of scheme: a requirement that is empty inside would be dropped by verifiers that
    # drop all empty values, and a signature over the card would not hold for them.
    requirements: list[Json] = [
        {"schemes": {name: {"list": [*edge.scopes]}}} for name in edge.schemes
    ]
    return {"securitySchemes": {**edge.schemes}, "securityRequirements": requirements}


def _mark_version(version: str, served: JsonObject) -> str:
    """The peer's version with a suffix of our hash, as build metadata (semver section 10)."""
    separator = "." if "+" in version else "+"
    return f"{version or '0'}{separator}{hash_bytes(orjson.dumps(served))[:8]}"
