"""Agent cards: rewrites an agent's card as the gateway's, in the shape that its reader asks for.

The shapes are that of 1.0, that of 0.3, and both merged, for readers that name no version. The client of an agent
chooses the interface to call.

A served card describes the gateway, not the agent: its interfaces, its authentication and its capabilities. All other
members of the agent's card pass, unknown ones included. No string may lead to the agent, except links to its
documentation, icon and provider and the names of its extensions, and these only if links are kept.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import field
from typing import Final, Literal, TypeAlias, assert_never

import orjson

from passerelle.a2a_mapping.card_payload import without_signatures
from passerelle.a2a_mapping.extensions import INTERFACES, PREFIX, UNDERSTOOD
from passerelle.a2a_mapping.members import as_list, object_at, objects_at, text_at
from passerelle.a2a_mapping.origins import read_origin, replace_origins
from passerelle.a2a_mapping.socket_frames import BINDING as SOCKET_BINDING
from passerelle.a2a_mapping.socket_frames import PATH as SOCKET_PATH
from passerelle.a2a_mapping.v0_3.cards import CARD_VERSION as LEGACY
from passerelle.a2a_mapping.v0_3.cards import LEGACY_MEMBERS, lift_card, list_addresses, lower_card
from passerelle.a2a_mapping.version import SERVED
from passerelle.core.agent_name import SEPARATOR, find_tenant
from passerelle.core.frozen import frozen
from passerelle.core.wire.json import Json, JsonObject

CardShape: TypeAlias = Literal["v1", "v0.3", "merged"]


def choose_shape(version: str | None, unset: CardShape) -> CardShape:
    """The card shape for a reader's ``A2A-Version``; a card is read before a version is negotiated.

    So an unsupported version is no error here: the card lists the supported ones.
    """
    asked = (version or "").strip()
    if not asked:
        return unset
    return "v0.3" if asked == LEGACY or asked.startswith(f"{LEGACY}.") else "v1"


def shape_card(card: JsonObject, shape: CardShape) -> JsonObject:
    """A 1.0 card of the gateway in a shape. Without an interface of 0.3 all shapes equal that of 1.0."""
    match shape:
        case "v1":
            return card
        case "v0.3":
            return lower_card(card) or card
        case "merged":
            addresses = list_addresses(card)
            return card if addresses is None else {**without_signatures(card), **addresses}
        case _:
            assert_never(shape)


BINDINGS: Final = ("JSONRPC", "HTTP+JSON")
"""The bindings of every agent, preferred first."""
EVERY_BINDING: Final = frozenset({*BINDINGS, "GRPC", SOCKET_BINDING})

_POINTS_AT_PEER: Final = ("documentationUrl", "iconUrl", "provider")
_REPLACED: Final = LEGACY_MEMBERS | {
    "supportedInterfaces",
    "securitySchemes",
    "securityRequirements",
    "capabilities",
    "signatures",
}


@frozen
class PublicEdge:
    """The public edge of the gateway, the same on every card.

    ``schemes`` are SecurityScheme objects of 1.0 by name, any one of which is enough, and ``scopes`` their required
    scopes. ``grpc`` is ``host:port``; ``grpc_default`` is the agent for calls without a tenant, since those of 0.3 have
    none. ``links``: whether documentation, icon and provider links stay.
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
    """Whether A2A is served over WebSocket too, the gateway's own binding."""
    listed: frozenset[str] | None = None
    """The bindings listed on cards. None: those at the origin of the card.

    Clients refuse a whole card for one interface at another origin (google-adk), or with an unknown scheme.
    """
    versions: tuple[str, ...] = SERVED


@frozen
class AgentAddress:
    """The addresses of an agent: its own ``card_url``, and its ``base_url`` here, without a trailing slash."""

    agent: str
    card_url: str
    base_url: str


def rewrite_card(card: JsonObject, place: AgentAddress, edge: PublicEdge) -> JsonObject:
    """The agent's card (1.0 or 0.3) as the gateway's 1.0 card, without signatures."""
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
                *_forward_extensions(lifted, origins, place, edge),
            ],
        },
        **_list_security(edge),
    }
    served["version"] = _mark_version(text_at(lifted, "version"), served)
    return served


def list_interfaces(place: AgentAddress, edge: PublicEdge) -> list[Json]:
    """The gateway's interfaces of one agent, 1.0 before 0.3: clients take the first one per binding."""
    listed: list[Json] = []
    tenant = find_tenant(place.agent)
    for version in sorted(edge.versions, reverse=True):
        if tenant is None or version == LEGACY:
            listed += [_describe(place.base_url, binding, version) for binding in BINDINGS]
        else:
            # Clients put the tenant into path or params themselves (A2A 1.0 section 8.3.1).
            url = place.base_url.removesuffix(f"{SEPARATOR}{tenant}")
            listed += [
                {**_describe(url, binding, version), "tenant": tenant} for binding in BINDINGS
            ]
        # A call of 0.3 over gRPC cannot name its agent: it has no tenant.
        if edge.grpc and (version != LEGACY or place.agent == edge.grpc_default):
            named: JsonObject = {} if version == LEGACY else {"tenant": place.agent}
            listed.append({**_describe(edge.grpc, "GRPC", version), **named})
        if edge.sockets and version != LEGACY:
            listed.append(_describe(_find_socket(place.base_url), SOCKET_BINDING, version))
    return listed


def split_interfaces(place: AgentAddress, edge: PublicEdge) -> tuple[list[Json], list[Json]]:
    """The interfaces on the card of an agent, and the further ones."""
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
    # Compared the way a dialer parses it: host and port only.
    return binding == "GRPC" and read_origin(f"{_read_scheme(place)}://{edge.grpc}") == read_origin(
        place.base_url
    )


def _read_scheme(place: AgentAddress) -> str:
    return place.base_url.partition("://")[0]


def _declare_further(further: list[Json]) -> Iterator[JsonObject]:
    """The extension with the further interfaces, for readers that request it."""
    if further:
        yield {
            "uri": INTERFACES,
            "description": "Further interfaces, on the card of readers that activate this extension.",
            "required": False,
            "params": {"interfaces": further},
        }


def list_further(card: JsonObject) -> list[JsonObject]:
    """The interfaces in the params of the gateway's extension on a card."""
    return [
        interface
        for extension in objects_at(object_at(card, "capabilities"), "extensions")
        if text_at(extension, "uri") == INTERFACES
        for interface in objects_at(object_at(extension, "params"), "interfaces")
    ]


def _find_socket(base_url: str) -> str:
    """The socket address of an agent; an address without a scheme stays without one."""
    scheme, colon, rest = base_url.partition("://")
    found = f"{scheme.replace('http', 'ws', 1)}{colon}{rest}" if colon else base_url
    return f"{found}{SOCKET_PATH}"


def list_origins(card: JsonObject, card_url: str) -> set[str]:
    """Every origin of the agent, from its card."""
    urls = [card_url, text_at(card, "url")]
    for name in ("supportedInterfaces", "additionalInterfaces"):
        urls += [text_at(interface, "url") for interface in objects_at(card, name)]
    # A gRPC address has no scheme (A2A 1.0 section 8.3, as dialers expect it).
    spelled = (url if "://" in url else f"grpc://{url}" for url in urls if url)
    return {origin for origin in map(read_origin, spelled) if origin is not None}


def hash_bytes(body: bytes) -> str:
    """The SHA-256 of a card's bytes, in hex."""
    return hashlib.sha256(body).hexdigest()


def _describe(url: str, binding: str, version: str) -> JsonObject:
    return {"url": url, "protocolBinding": binding, "protocolVersion": version}


def _clean_skills(card: JsonObject) -> Iterator[JsonObject]:
    """The gateway authenticates callers, in the same way for all skills."""
    for skill in objects_at(card, "skills"):
        yield {name: value for name, value in skill.items() if name != "securityRequirements"}


def _forward_extensions(
    card: JsonObject, origins: set[str], place: AgentAddress, edge: PublicEdge
) -> Iterator[JsonObject]:
    """The agent's extensions, which are forwarded on request; the gateway's own ones are not passed on.

    An extension that the gateway activates itself is never required of the caller.
    """
    for extension in objects_at(object_at(card, "capabilities"), "extensions"):
        uri = text_at(extension, "uri")
        cleaned = replace_origins(extension, origins, place.base_url)
        if not uri or uri.startswith(PREFIX) or not isinstance(cleaned, dict):
            continue
        if cleaned["uri"] == uri or edge.links:
            # A URI is a name, not an address: a rewritten one would name another extension.
            known: JsonObject = {"required": False} if uri in UNDERSTOOD else {}
            yield {**cleaned, "uri": uri, **known}


def _list_security(edge: PublicEdge) -> JsonObject:
    if not edge.schemes:
        return {}
    # Scopes are named for every kind of scheme: some verifiers drop all empty values, so they would drop an empty
    # requirement, and a signature over the card would not verify.
    requirements: list[Json] = [
        {"schemes": {name: {"list": [*edge.scopes]}}} for name in edge.schemes
    ]
    return {"securitySchemes": {**edge.schemes}, "securityRequirements": requirements}


def _mark_version(version: str, served: JsonObject) -> str:
    """The agent's version with a suffix of the served card's hash, as build metadata (semver section 10)."""
    separator = "." if "+" in version else "+"
    return f"{version or '0'}{separator}{hash_bytes(orjson.dumps(served))[:8]}"
