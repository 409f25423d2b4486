"""When a card changed, whether the caller has the current one, and what is signed."""

from dataclasses import dataclass, replace

import orjson
import pytest
from a2a.client.card_resolver import parse_agent_card
from a2a.utils.signing import InvalidSignaturesError, create_signature_verifier
from jwt import PyJWK
from structlog.testing import capture_logs

from passerelle.a2a_mapping.cards import AgentAddress, PublicEdge
from passerelle.core.peer import PeerCard
from passerelle.core.wire.json import JsonObject
from passerelle.gateway.a2a.cards import (
    KEY_EDGE,
    OPEN_EDGE,
    CardOptions,
    ServedCards,
    make_card_options,
    shorten,
)
from passerelle.gateway.a2a.reply import HttpReply
from passerelle.gateway.settings.model import Settings
from passerelle.runtime.common.signatures import Signer, mint_signing_key, read_signing_key

CARD: JsonObject = {
    "name": "echo",
    "description": "Says it again.",
    "version": "1",
    "defaultInputModes": ["text/plain"],
    "defaultOutputModes": ["text/plain"],
    "skills": [{"id": "s", "name": "S", "description": "d", "tags": ["t"]}],
}
PEER = PeerCard({**CARD}, "sha-1", "http://peer:1/", streaming=True, protocol="a2a/1.0")
KEY = read_signing_key(mint_signing_key("ES256"), "key")
OLDER = read_signing_key(mint_signing_key("EdDSA"), "older")
SIGNER = Signer((KEY, OLDER), "https://gateway.example/.well-known/jwks.json")


@dataclass
class HandClock:
    """A clock that a test moves."""

    ms: int = 1_000_000

    def now_ms(self) -> int:
        return self.ms


def place(host: str = "a") -> AgentAddress:
    return AgentAddress("echo", "http://peer:1/card", f"http://{host}/agents/echo")


def render(options: CardOptions, version: str | None = None, peer: PeerCard = PEER) -> HttpReply:
    return ServedCards(options, HandClock()).render(peer, place(), version)


def read(reply: HttpReply) -> JsonObject:
    card: JsonObject = orjson.loads(reply.body)
    return card


def test_card_changed_when_the_card_of_the_peer_did_whatever_host_is_asked() -> None:
    clock = HandClock()
    cards = ServedCards(CardOptions(OPEN_EDGE), clock)

    def ask(peer: PeerCard, host: str) -> dict[str, str]:
        return dict(cards.render(peer, place(host), None).headers)

    first = ask(PEER, "a")
    assert first["last-modified"] == "Thu, 01 Jan 1970 00:16:40 GMT"
    clock.ms += 60_000
    other = ask(PEER, "b")
    assert other["last-modified"] == first["last-modified"]
    assert other["etag"] != first["etag"]
    assert ask(PEER, "a") == first
    changed = ask(replace(PEER, card={**CARD, "version": "2"}, sha256="sha-2"), "a")
    assert changed["last-modified"] == "Thu, 01 Jan 1970 00:17:40 GMT"
    assert changed["etag"] != first["etag"]


@pytest.mark.parametrize(
    ("asked", "status"),
    [
        ({}, 200),
        ({"if-modified-since": "Thu, 01 Jan 1970 00:16:40 GMT"}, 304),
        ({"if-modified-since": "Thu, 01 Jan 1970 00:16:41 GMT"}, 304),
        ({"if-modified-since": "Thu, 01 Jan 1970 00:16:39 GMT"}, 200),
        ({"if-modified-since": "Thu, 01 Jan 1970 00:16:40"}, 200),
        ({"if-modified-since": ""}, 200),
        ({"if-none-match": ""}, 200),
        ({"if-none-match": '"x", *'}, 304),
    ],
)
def test_caller_with_the_current_card_gets_not_modified(asked: dict[str, str], status: int) -> None:
    assert shorten(render(CardOptions(OPEN_EDGE)), asked).status == status


def test_each_version_has_its_shape_and_its_own_etag() -> None:
    options = CardOptions(replace(KEY_EDGE, versions=("1.0", "0.3")))
    newer, older, merged = (render(options, version) for version in ("1.0", "0.3", None))
    assert len({reply.headers["etag"] for reply in (newer, older, merged)}) == 3
    assert ("url" in read(newer), "supportedInterfaces" in read(newer)) == (False, True)
    assert ("url" in read(older), "supportedInterfaces" in read(older)) == (True, False)
    assert ("url" in read(merged), "supportedInterfaces" in read(merged)) == (True, True)
    pure = CardOptions(options.edge, "v1")
    assert render(pure).body == newer.body


def _verify(body: bytes, *keys: PyJWK) -> None:
    known = {key.key_id: key for key in keys}
    # A key that is not known is one that verifies nothing.
    verify = create_signature_verifier(
        lambda kid, _jku: known.get(kid, next(iter(known.values()))), ["ES256", "EdDSA"]
    )
    verify(parse_agent_card(orjson.loads(body)))


@pytest.mark.parametrize("key", [KEY, OLDER], ids=["newer", "older"])
def test_sdk_verifies_our_card_with_either_key_while_keys_rotate(key: type) -> None:
    signed = render(CardOptions(KEY_EDGE, "v1", SIGNER))
    assert len(read(signed)["signatures"]) == 2  # type: ignore[arg-type]  # JSON
    _verify(signed.body, PyJWK.from_dict(key.jwk))  # type: ignore[attr-defined]  # a signing key


def test_signature_does_not_hold_for_a_card_that_was_changed() -> None:
    signed = render(CardOptions(KEY_EDGE, "v1", SIGNER)).body
    forged = signed.replace(b"http://a/agents/echo", b"http://b/agents/echo")
    with pytest.raises(InvalidSignaturesError):
        _verify(forged, PyJWK.from_dict(KEY.jwk))


def test_same_card_has_the_same_bytes_on_every_instance() -> None:
    options = CardOptions(KEY_EDGE, "v1", SIGNER)
    assert render(options).body == render(options).body


def test_card_that_has_no_canonical_form_is_served_without_a_signature() -> None:
    odd = replace(PEER, card={**CARD, "future": 2**60})
    with capture_logs() as logs:
        assert "signatures" not in read(render(CardOptions(OPEN_EDGE, "v1", SIGNER), peer=odd))
    assert [entry["event"] for entry in logs] == ["card.unsigned"]


def test_options_follow_the_settings() -> None:
    plain = make_card_options(Settings(), SIGNER)
    assert (plain.shape, plain.signer, plain.edge.links) == ("merged", None, True)
    assert set(plain.edge.schemes) == {"bearer", "apiKey"}
    signing = {"keys": [{"file": "k.pem"}]}
    signed = make_card_options(Settings.model_validate({"signing": signing}), SIGNER)
    assert (signed.shape, signed.signer) == ("v1", SIGNER)
    opened = make_card_options(Settings(auth="open", card_links="drop", card_shape="v1"), None)
    edge = PublicEdge(
        extensions=OPEN_EDGE.extensions, links=False, sockets=True, grpc_default="passerelle"
    )
    assert (opened.shape, opened.edge) == ("v1", edge)
