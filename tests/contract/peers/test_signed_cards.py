"""Signed cards over a real connection: where a signature is required, a card without a valid one changes nothing."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass

import orjson
import pytest
from structlog.testing import capture_logs

from passerelle.a2a_mapping.card_payload import render_payload
from passerelle.core.errors import InvalidAgentResponse
from passerelle.core.wire.json import Json, JsonObject
from passerelle.peers.config import PeerConfig
from passerelle.peers.registry import PeerRegistry
from passerelle.peers.signatures import CardTrust, SignaturePolicy
from passerelle.runtime.common.signatures import Signer, mint_signing_key, read_signing_key
from tests.support.scripted_peer import ScriptedPeer, make_card

pytestmark = pytest.mark.anyio
KEY = read_signing_key(mint_signing_key("ES256"), "key")
DAY_MS = 86_400_000


@dataclass
class HandClock:
    """A clock that a test moves."""

    ms: int = 1_000_000

    def now_ms(self) -> int:
        return self.ms


def sign(card: JsonObject) -> JsonObject:
    signatures: list[Json] = [
        {"protected": made.protected, "signature": made.signature}
        for made in Signer((KEY,)).sign(render_payload(card))
    ]
    return {**card, "signatures": signatures}


@asynccontextmanager
async def open_peers(
    peer: ScriptedPeer, policy: SignaturePolicy, clock: HandClock
) -> AsyncGenerator[PeerRegistry]:
    trust = CardTrust(policy, (orjson.dumps(KEY.jwk).decode(),))
    peers = PeerRegistry([PeerConfig("echo", peer.url, trust=trust)], clock)
    try:
        yield peers
    finally:
        await peers.close()


async def test_unsigned_new_card_is_rejected_where_a_signature_is_required() -> None:
    clock = HandClock()
    async with ScriptedPeer("echo") as peer, open_peers(peer, "require", clock) as peers:
        peer.card = sign(make_card("echo", f"{peer.url}/"))
        first = await peers.find("echo").describe()
        assert (first.signature, first.stale) == ("verified", False)
        peer.card = make_card("other", f"{peer.url}/")
        clock.ms += DAY_MS
        with capture_logs() as logs:
            kept = await peers.find("echo").describe()
        assert (kept.card["name"], kept.signature, kept.stale) == ("echo", "verified", True)
        events = [entry for entry in logs if entry["event"] == "peer.card_signature"]
        assert [(entry["peer"], entry["standing"]) for entry in events] == [("echo", "unsigned")]
        peer.card = sign(make_card("newer", f"{peer.url}/"))
        clock.ms += DAY_MS
        assert (await peers.find("echo").describe()).card["name"] == "newer"


async def test_agent_without_a_signed_card_is_not_used_where_a_signature_is_required() -> None:
    async with ScriptedPeer("echo") as peer, open_peers(peer, "require", HandClock()) as peers:
        with pytest.raises(InvalidAgentResponse, match="signatures: unsigned"):
            await peers.find("echo").describe()


async def test_missing_signature_only_warns_where_it_is_recommended() -> None:
    async with ScriptedPeer("echo") as peer, open_peers(peer, "warn", HandClock()) as peers:
        with capture_logs() as logs:
            card = await peers.find("echo").describe()
        assert (card.signature, card.card["name"]) == ("unsigned", "echo")
        assert [entry["event"] for entry in logs] == ["peer.card_signature"]
