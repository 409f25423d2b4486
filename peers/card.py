"""Parses a peer's card. Pure; loading and caching are in ``cards``."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

from passerelle.a2a_mapping.members import object_at, objects_at
from passerelle.core.agent_name import find_tenant
from passerelle.core.errors import InvalidAgentResponse
from passerelle.core.frozen import frozen
from passerelle.core.peer import PeerCard
from passerelle.peers.answers import NotJson, parse_json
from passerelle.peers.interface import (
    AllowedTargets,
    Interface,
    choose_tenant,
    lacks_scheme,
    order,
    read_extensions,
    read_offer,
)
from passerelle.peers.origin import host_of

if TYPE_CHECKING:
    from passerelle.core.wire.json import JsonObject
    from passerelle.peers.config import PeerConfig
    from passerelle.peers.interface import Choice


@frozen
class KnownCard:
    """A valid card, and its ``interfaces`` in the order in which they are tried; there is at least one."""

    card: PeerCard
    interfaces: tuple[Interface, ...]


def read_card(config: PeerConfig, kinds: tuple[Choice, ...], raw: bytes) -> KnownCard:
    """Parses a card of 1.0, 0.3 or both, and orders the interfaces for calls; ``kinds`` are those supported here.

    Raises:
        InvalidAgentResponse: names the peer, the field (``where``) and the fault.
    """
    card = _parse(config, raw)
    interfaces = _choose_interfaces(config, kinds, card)
    first = interfaces[0]
    described = PeerCard(
        card=card,
        sha256=hashlib.sha256(raw).hexdigest(),
        endpoint=first.url,
        streaming=_reads_streaming(config, card),
        protocol=first.protocol,
        lists=first.lists,
        push=_reads_push(card),
    )
    return KnownCard(described, interfaces)


def read_dial_in_card(config: PeerConfig, raw: bytes) -> KnownCard:
    """Parses the card that an agent sends when it dials in; its addresses are ignored.

    Raises:
        InvalidAgentResponse: as ``read_card``.
    """
    card = _parse(config, raw)
    interface = Interface(
        "CHANNEL", "1.0", config.card_url, config.card_url, None, read_extensions(card)
    )
    described = PeerCard(
        card=card,
        sha256=hashlib.sha256(raw).hexdigest(),
        endpoint=interface.url,
        streaming=_reads_streaming(config, card),
        protocol=interface.protocol,
    )
    return KnownCard(described, (interface,))


def _parse(config: PeerConfig, raw: bytes) -> JsonObject:
    try:
        card = parse_json(raw)
    except NotJson as fault:
        raise reject_card(config, "the body", str(fault)) from None
    if not isinstance(card, dict):
        raise reject_card(config, "the body", "not a JSON object")
    if not isinstance(card.get("name"), str):
        raise reject_card(config, "name", "missing, or not a text")
    return card


def _choose_interfaces(
    config: PeerConfig, kinds: tuple[Choice, ...], card: JsonObject
) -> tuple[Interface, ...]:
    allowed = AllowedTargets(config.origins, host_of(config.url), config.grpc)
    offer = read_offer(card, allowed)
    chosen = order(choose_tenant(offer.usable, find_tenant(config.name)), kinds)
    if chosen:
        return chosen
    if offer.foreign:
        reason = "; ".join(dict.fromkeys(_explain_foreign(one, allowed) for one in offer.foreign))
    elif not objects_at(card, "supportedInterfaces") and not card.get("url"):
        reason = "missing, or empty"
    else:
        reason = f"none of {', '.join(kinds)} is offered"
    raise reject_card(config, "supportedInterfaces", reason)


def _explain_foreign(interface: Interface, allowed: AllowedTargets) -> str:
    """Why calls may not use the interface, and the setting that would allow them."""
    if not lacks_scheme(interface):
        return f"{interface.origin} is neither the card's origin nor in allowed_origins"
    stated = f"gRPC at {interface.url}: a card does not say whether that is TLS or plain text"
    if host_of(interface.origin) == allowed.host:
        return f"{stated}; set `grpc: plaintext` or `grpc: tls` for this agent"
    plain, tls = (f"{scheme}://{interface.url}" for scheme in ("http", "https"))
    return f"{stated}, and it is not the card's host; put {plain} (plain text) or {tls} (TLS) into allowed_origins"


def _reads_streaming(config: PeerConfig, card: JsonObject) -> bool:
    match card.get("capabilities", {}):
        case {"streaming": bool() as streaming}:
            return streaming
        case {"streaming": _}:
            raise reject_card(config, "capabilities.streaming", "not true or false")
        case dict():
            return False
        case _:
            raise reject_card(config, "capabilities", "not a JSON object")


def _reads_push(card: JsonObject) -> bool:
    return object_at(card, "capabilities").get("pushNotifications") is True


def reject_card(config: PeerConfig, where: str, reason: str) -> InvalidAgentResponse:
    """The error for a card that was read and is invalid."""
    return InvalidAgentResponse(
        f"peer {config.name}: the card at {config.card_url} cannot be used: {where}: {reason}",
        peer=config.name,
        url=config.card_url,
        where=where,
        reason=reason,
    )
