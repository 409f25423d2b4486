"""The interfaces that a card offers, and the order in which they are tried (A2A 1.0 section 8.3). Pure.

A card of 1.0 lists them; one of 0.3 has a main address and further ones; a merged card has both. Only the origin of an
address decides whether calls may go there: a card cannot send our credentials to another host.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final, Literal, TypeAlias, cast, get_args

from passerelle.a2a_mapping.cards import list_further
from passerelle.a2a_mapping.members import object_at, objects_at, text_at
from passerelle.core.frozen import frozen
from passerelle.peers.origin import host_of, move, origin_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from passerelle.a2a_mapping.version import Version
    from passerelle.core.wire.json import JsonObject

Binding: TypeAlias = Literal["JSONRPC", "HTTP+JSON", "GRPC", "CHANNEL"]
Security: TypeAlias = Literal["plaintext", "tls"]
"""Whether a gRPC address uses TLS: it is ``host:port`` without a scheme."""
Choice: TypeAlias = Literal[
    "JSONRPC/1.0", "HTTP+JSON/1.0", "GRPC/1.0", "JSONRPC/0.3", "HTTP+JSON/0.3", "GRPC/0.3"
]
InterfaceKind: TypeAlias = Choice | Literal["CHANNEL/1.0"]
"""``CHANNEL`` is not on any card: the agent dials in."""
PREFERENCE: Final[tuple[Choice, ...]] = get_args(Choice)
"""Cheapest first: gRPC converts each frame twice, and 0.3 has no list of tasks to find a lost send in."""

_WRITTEN: Final[dict[tuple[str, str], tuple[Binding, Version]]] = {
    ("JSONRPC", "1.0"): ("JSONRPC", "1.0"),
    ("HTTP+JSON", "1.0"): ("HTTP+JSON", "1.0"),
    ("GRPC", "1.0"): ("GRPC", "1.0"),
    ("JSONRPC", "0.3"): ("JSONRPC", "0.3"),
    ("HTTP+JSON", "0.3"): ("HTTP+JSON", "0.3"),
    ("GRPC", "0.3"): ("GRPC", "0.3"),
}
_EVERY: Final = frozenset({"0.0.0.0", "::"})  # noqa: S104  named by cards, never bound here
_LOCAL: Final = _EVERY | {"localhost", "127.0.0.1", "::1"}
"""Names by which a program means its own machine."""
_LISTED: Final = "1.0"
"""The version of a ``supportedInterfaces`` entry without one: 0.3 has no such list."""
_ADDRESSED: Final = "0.3"
"""The version of a card without one and without the list: the default in the schema of 0.3."""


@frozen
class Interface:
    """Where and how a peer is called. ``tenant`` is sent as on the card; ``origin`` is that of ``url``.

    ``extensions`` are those that the agent declares.
    """

    binding: Binding
    version: Version
    url: str
    origin: str
    tenant: str | None = None
    extensions: frozenset[str] = frozenset()

    @property
    def choice(self) -> InterfaceKind:
        """The name of its kind, as in a preference."""
        return cast("InterfaceKind", f"{self.binding}/{self.version}")

    @property
    def lists(self) -> bool:
        """Whether it has ListTasks; 0.3 does not."""
        return self.version == "1.0"

    @property
    def protocol(self) -> str:
        """The native protocol that an attempt records (A2A-2)."""
        return f"a2a/{self.version}"


@frozen
class CardInterfaces:
    """The interfaces of a card: ``usable`` ones, not ordered yet, and ``foreign`` ones that calls may not use."""

    usable: tuple[Interface, ...]
    foreign: tuple[Interface, ...]


@frozen
class AllowedTargets:
    """Where calls may go: to ``origins``, and over gRPC, if ``grpc`` is set, to every port of ``host``."""

    origins: frozenset[str]
    host: str = ""
    grpc: Security | None = None


def read_offer(card: JsonObject, allowed: AllowedTargets) -> CardInterfaces:
    """The supported interfaces of a card."""
    extensions = read_extensions(card)
    usable: list[Interface] = []
    foreign: list[Interface] = []
    for listed in _list_all(card, allowed):
        interface = _find_allowed_name(listed, allowed)
        if interface.origin not in allowed.origins and not _is_allowed_grpc(interface, allowed):
            foreign.append(interface)
        else:
            usable.append(replace(interface, extensions=extensions))
    return CardInterfaces(tuple(dict.fromkeys(usable)), tuple(dict.fromkeys(foreign)))


def read_extensions(card: JsonObject) -> frozenset[str]:
    """URIs of the extensions that a card declares."""
    declared = objects_at(object_at(card, "capabilities"), "extensions")
    return frozenset(uri for one in declared if (uri := text_at(one, "uri")))


def choose_tenant(interfaces: tuple[Interface, ...], tenant: str | None) -> tuple[Interface, ...]:
    """The interfaces of a tenant, if the card distinguishes tenants; all of them without a tenant.

    If no interface has the tenant, its calls use those without a tenant, and never those of another one.
    """
    if tenant is None:
        return interfaces
    own = tuple(one for one in interfaces if one.tenant == tenant)
    return own or tuple(one for one in interfaces if one.tenant is None)


def order(
    interfaces: tuple[Interface, ...], preference: tuple[Choice, ...]
) -> tuple[Interface, ...]:
    """Those in the preference, in its order; within one kind, in the card's order."""
    ranks: dict[InterfaceKind, int] = {choice: rank for rank, choice in enumerate(preference)}
    named = [one for one in interfaces if one.choice in ranks]
    return tuple(sorted(named, key=lambda one: ranks[one.choice]))


def lacks_scheme(interface: Interface) -> bool:
    """Whether the address does not state if it is TLS."""
    return interface.binding == "GRPC" and "://" not in interface.url


def _find_allowed_name(interface: Interface, allowed: AllowedTargets) -> Interface:
    """The interface under an allowed name of its machine, if the card uses another name of that machine.

    A program that listens on every address puts 0.0.0.0 on its card, and samples put localhost. Both mean the card's
    host, at the same port.
    """
    host = host_of(interface.origin)
    if interface.origin in allowed.origins or lacks_scheme(interface) or host not in _LOCAL:
        return interface
    for origin in sorted(allowed.origins):
        known = host_of(origin)
        is_here = known in _LOCAL or (host in _EVERY and known == allowed.host)
        if is_here and move(interface.origin, origin) == origin:
            return replace(interface, url=move(interface.url, origin), origin=origin)
    return interface


def _is_allowed_grpc(interface: Interface, allowed: AllowedTargets) -> bool:
    if allowed.grpc is None or not lacks_scheme(interface):
        return False
    return host_of(interface.origin) == allowed.host


def _list_all(card: JsonObject, allowed: AllowedTargets) -> Iterator[Interface]:
    listed = objects_at(card, "supportedInterfaces")
    for entry in (*listed, *list_further(card)):
        kind = text_at(entry, "protocolBinding"), text_at(entry, "protocolVersion") or _LISTED
        yield from _read(kind, text_at(entry, "url"), allowed, text_at(entry, "tenant") or None)
    older = text_at(card, "protocolVersion") or ("" if listed else _ADDRESSED)
    if older and text_at(card, "url"):
        # A2A 0.3 section 5.5: no preferred transport means JSON-RPC.
        first = text_at(card, "preferredTransport") or "JSONRPC"
        yield from _read((first, older), text_at(card, "url"), allowed)
        for entry in objects_at(card, "additionalInterfaces"):
            yield from _read((text_at(entry, "transport"), older), text_at(entry, "url"), allowed)


def _read(
    kind: tuple[str, str], url: str, allowed: AllowedTargets, tenant: str | None = None
) -> Iterator[Interface]:
    binding, version = kind
    # Patch numbers do not change the protocol (A2A 1.0 section 3.6).
    known = _WRITTEN.get((binding, ".".join(version.split(".")[:2])))
    if known is None:
        return
    origin = _find_grpc_origin(url, allowed) if binding == "GRPC" else origin_of(url)
    if origin is not None:
        yield Interface(*known, url, origin, tenant)


def _find_grpc_origin(url: str, allowed: AllowedTargets) -> str | None:
    """The origin of a gRPC address; if it has no scheme, the operator's settings decide whether it is TLS."""
    if "://" in url:
        return origin_of(url)
    schemes = ("http", "https") if allowed.grpc == "plaintext" else ("https", "http")
    spellings = [origin_of(f"{scheme}://{url}") for scheme in schemes]
    return next((one for one in spellings if one in allowed.origins), spellings[0])
