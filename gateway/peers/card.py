"""What a peer's card says, read from its bytes. Pure; loading and caching are in ``cards``."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from passerelle.core.errors import InvalidAgentResponse
from passerelle.core.peer import PeerCard
from passerelle.gateway.peers.answers import NotJson, parse_json
from passerelle.gateway.peers.config import origin_of

if TYPE_CHECKING:
    from passerelle.core.json import Json, JsonObject
    from passerelle.gateway.peers.config import PeerConfig

PROTOCOL: Final = "a2a/1.0"


@dataclass(frozen=True, slots=True)
class KnownCard:
    """A card that can be used. ``tenant`` is sent as the card says it; ``origin`` is that of the endpoint."""

    card: PeerCard
    origin: str
    tenant: str | None


def read_card(config: PeerConfig, raw: bytes) -> KnownCard:
    """Reads a card and chooses its first JSON-RPC 1.0 interface that calls may go to.

    Raises:
        InvalidAgentResponse: names the peer, the field (``where``) and what is wrong with it.
    """
    try:
        card = parse_json(raw)
    except NotJson as fault:
        raise reject_card(config, "the body", str(fault)) from None
    if not isinstance(card, dict):
        raise reject_card(config, "the body", "not a JSON object")
    if not isinstance(card.get("name"), str):
        raise reject_card(config, "name", "missing, or not a text")
    interface = _choose_interface(config, card)
    endpoint = str(interface["url"])
    tenant = interface.get("tenant")
    known = PeerCard(
        card=card,
        sha256=hashlib.sha256(raw).hexdigest(),
        endpoint=endpoint,
        streaming=_reads_streaming(config, card),
        protocol=PROTOCOL,
    )
    return KnownCard(
        known,
        origin_of(endpoint) or endpoint,
        tenant if isinstance(tenant, str) and tenant else None,
    )


def _choose_interface(config: PeerConfig, card: JsonObject) -> JsonObject:
    offered = card.get("supportedInterfaces")
    if not isinstance(offered, list) or not offered:
        older = "url" in card and "protocolVersion" in card
        reason = "missing: this is a card of A2A 0.3, which is not spoken here"
        raise reject_card(config, "supportedInterfaces", reason if older else "missing, or empty")
    usable = [entry for entry in offered if _speaks_jsonrpc(entry)]
    foreign: list[str] = []
    for entry in usable:
        if isinstance(entry, dict) and isinstance(url := entry.get("url"), str):
            if config.allows(url):
                return entry
            foreign.append(origin_of(url) or url[:80])
    if foreign:
        raise reject_card(
            config,
            "supportedInterfaces",
            f"{', '.join(foreign)} is neither the card's origin nor in allowed_origins",
        )
    raise reject_card(config, "supportedInterfaces", "no JSONRPC interface of protocol version 1.0")


def _speaks_jsonrpc(entry: Json) -> bool:
    match entry:
        case {"url": str(), "protocolBinding": "JSONRPC", "protocolVersion": str() as version}:
            # Patch numbers do not change the protocol (A2A 1.0 section 3.6).
            return version.split(".")[:2] == ["1", "0"]
        case _:
            return False


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


def reject_card(config: PeerConfig, where: str, reason: str) -> InvalidAgentResponse:
    """The error for a card that was read and cannot be used."""
    return InvalidAgentResponse(
        f"peer {config.name}: the card at {config.card_url} cannot be used: {where}: {reason}",
        peer=config.name,
        url=config.card_url,
        where=where,
        reason=reason,
    )
