"""Signatures on agents' cards: which keys count, what a card cannot choose, and the effect of a key change."""

from __future__ import annotations

import base64
import hashlib
import hmac
from dataclasses import dataclass, field
from typing import cast

import orjson
import pytest
from a2a.types.a2a_pb2 import AgentCard
from a2a.utils.signing import ProtectedHeader, create_agent_card_signer
from cryptography.hazmat.primitives.asymmetric import rsa
from google.protobuf.json_format import MessageToDict, ParseDict
from jwt import PyJWK

from passerelle.a2a_mapping.card_payload import render_payload
from passerelle.core.errors import PeerUnavailable
from passerelle.core.wire.json import Json, JsonObject
from passerelle.peers.signatures import CardJudge, CardTrust, SignaturePolicy, SignatureVerdict
from passerelle.runtime.common.signatures import (
    Signer,
    SigningKey,
    encode_segment,
    mint_signing_key,
    read_signing_key,
)

pytestmark = pytest.mark.anyio
JKU = "https://keys.example/jwks.json"
ORIGINS = frozenset({"https://keys.example"})
CARD: JsonObject = {
    "name": "Signed",
    "description": "",
    "version": "1",
    "capabilities": {"streaming": False, "extensions": []},
    "skills": [],
    "unknown": {"kept": []},
}
ONE = read_signing_key(mint_signing_key("ES256"), "one")
TWO = read_signing_key(mint_signing_key("EdDSA"), "two")


@dataclass
class World:
    """A clock, and the one place where keys are published."""

    keys: list[SigningKey] = field(default_factory=list[SigningKey])
    ms: int = 1_000_000
    asked: list[str] = field(default_factory=list[str])
    away: bool = False

    def now_ms(self) -> int:
        return self.ms

    async def fetch(self, url: str) -> bytes:
        self.asked.append(url)
        if self.away:
            raise PeerUnavailable("nobody is there")
        return orjson.dumps(Signer(tuple(self.keys)).render_jwks())


def sign(*keys: SigningKey, card: JsonObject = CARD, jku: str | None = JKU) -> JsonObject:
    made = Signer(keys, jku).sign(render_payload(card))
    signatures: list[Json] = [
        {"protected": one.protected, "signature": one.signature} for one in made
    ]
    return {**card, "signatures": signatures}


def pin(*keys: SigningKey, policy: SignaturePolicy = "require", revoked: str = "") -> CardTrust:
    texts = tuple(orjson.dumps(key.jwk).decode() for key in keys)
    return CardTrust(policy, texts, revoked=frozenset({revoked}))


async def judge(trust: CardTrust, card: JsonObject, world: World | None = None) -> SignatureVerdict:
    world = world or World([ONE])
    return await CardJudge(trust, world.fetch, world).judge(card)


async def test_card_signed_by_a_pinned_key_is_verified_without_a_request() -> None:
    world = World()
    verdict = await judge(pin(ONE, TWO), sign(TWO, jku="https://evil.example/jwks.json"), world)
    assert (verdict.standing, set(verdict.kids)) == ("verified", {TWO.kid})
    assert world.asked == []


async def test_key_of_a_trusted_origin_is_verified_and_asked_for_once() -> None:
    world = World([ONE])
    judged = CardJudge(CardTrust("require", jku_origins=ORIGINS), world.fetch, world)
    assert (await judged.judge(sign(ONE))).standing == "verified"
    assert (await judged.judge(sign(ONE))).standing == "verified"
    assert world.asked == [JKU]
    world.ms += 600_000
    await judged.judge(sign(ONE))
    assert world.asked == [JKU, JKU]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("name", "Other"),
        ("description", "x"),
        ("skills", [{"id": "s"}]),
        ("unknown", {"kept": [1]}),
    ],
)
async def test_card_that_was_changed_is_not_trusted(name: str, value: Json) -> None:
    verdict = await judge(pin(ONE), {**sign(ONE), name: value})
    assert (verdict.standing, "is not valid" in verdict.reason) == ("untrusted", True)


async def test_key_at_an_origin_that_is_not_named_is_not_asked_for() -> None:
    world = World([ONE])
    for jku in ("https://evil.example/jwks.json", "http://keys.example/jwks.json", "file:///etc"):
        verdict = await judge(CardTrust("warn", jku_origins=ORIGINS), sign(ONE, jku=jku), world)
        assert verdict.standing == "untrusted"
    assert world.asked == []


@pytest.mark.kit("CARD-SIGN-004")
async def test_revoked_key_does_not_count_and_another_signature_does() -> None:
    trust = pin(ONE, TWO, revoked=ONE.kid)
    assert (await judge(trust, sign(ONE))).standing == "untrusted"
    assert (await judge(trust, sign(ONE, TWO))).kids == {TWO.kid}


def _forge(header: JsonObject, signature: bytes | None = None, key: bytes = b"") -> JsonObject:
    protected = encode_segment(orjson.dumps(header))
    signed = f"{protected}.{encode_segment(render_payload(CARD))}".encode()
    made = hmac.digest(key, signed, hashlib.sha256) if signature is None else signature
    return {**CARD, "signatures": [{"protected": protected, "signature": encode_segment(made)}]}


@pytest.mark.parametrize("algorithm", ["none", "None", "HS256", "", "RS1"])
async def test_card_cannot_choose_an_algorithm_that_is_not_allowed(algorithm: str) -> None:
    # The oldest trick: the public key, which everybody has, as the secret of an HMAC.
    public = orjson.dumps(ONE.jwk)
    card = _forge({"alg": algorithm, "kid": ONE.kid}, key=public)
    verdict = await judge(pin(ONE), card)
    assert (verdict.standing, "is not allowed" in verdict.reason) == ("untrusted", True)


async def test_key_is_used_for_its_own_algorithm_alone() -> None:
    for algorithm in ("EdDSA", "RS256", "PS256"):
        card = _forge({"alg": algorithm, "kid": ONE.kid}, b"x" * 64)
        assert (await judge(pin(ONE), card)).standing == "untrusted"


@pytest.mark.parametrize(
    "signatures",
    [
        None,
        [],
        "x",
        [1],
        [{"protected": "!", "signature": "AA"}],
        [{"protected": base64.b64encode(b"[]").decode(), "signature": "AA"}],
        [{"protected": encode_segment(b'{"alg":"ES256"}'), "signature": "AA"}],
        [
            {
                "protected": encode_segment(b'{"alg":"ES256","kid":"k","crit":["b64"]}'),
                "signature": "AA",
            }
        ],
    ],
)
async def test_unreadable_signature_counts_as_unsigned(signatures: Json) -> None:
    verdict = await judge(pin(ONE), {**CARD, "signatures": signatures})
    assert verdict.standing == "unsigned"


async def test_a_limited_number_of_signatures_is_checked() -> None:
    wrong = _forge({"alg": "ES256", "kid": ONE.kid}, b"x" * 64)["signatures"]
    right = sign(ONE)["signatures"]
    assert isinstance(wrong, list)
    assert isinstance(right, list)
    assert (await judge(pin(ONE), {**CARD, "signatures": wrong * 7 + right})).standing == "verified"
    assert (await judge(pin(ONE), {**CARD, "signatures": wrong * 8 + right})).standing != "verified"


async def test_keys_that_cannot_be_read_leave_the_card_untrusted() -> None:
    world = World(away=True)
    verdict = await judge(CardTrust("require", jku_origins=ORIGINS), sign(ONE), world)
    assert (verdict.standing, "nobody is there" in verdict.reason) == ("untrusted", True)


async def test_card_that_loses_its_signature_names_the_previous_key() -> None:
    world = World([ONE])
    judged = CardJudge(pin(ONE, policy="warn"), world.fetch, world)
    await judged.judge(sign(ONE))
    verdict = await judged.judge(CARD)
    assert (verdict.standing, ONE.kid in verdict.reason) == ("unsigned", True)


async def test_another_key_of_the_same_origin_is_a_change() -> None:
    world = World([ONE, TWO])
    strict = CardJudge(CardTrust("require", jku_origins=ORIGINS), world.fetch, world)
    lax = CardJudge(CardTrust("warn", jku_origins=ORIGINS), world.fetch, world)
    for judged in (strict, lax):
        assert (await judged.judge(sign(ONE))).standing == "verified"
        assert (await judged.judge(sign(TWO))).standing == "changed"
    # Who only warns goes on with the new key; who requires stays with the old one.
    assert (await lax.judge(sign(TWO))).standing == "verified"
    assert (await strict.judge(sign(TWO))).standing == "changed"


async def test_keys_that_rotate_side_by_side_are_no_change() -> None:
    world = World([ONE, TWO])
    judged = CardJudge(CardTrust("require", jku_origins=ORIGINS), world.fetch, world)
    for keys in ([ONE], [ONE, TWO], [TWO]):
        assert (await judged.judge(sign(*keys))).standing == "verified"


async def test_pinned_key_may_come_alone() -> None:
    world = World()
    judged = CardJudge(pin(ONE, TWO), world.fetch, world)
    assert (await judged.judge(sign(ONE))).standing == "verified"
    assert (await judged.judge(sign(TWO))).standing == "verified"


async def test_key_that_is_not_in_the_set_does_not_make_us_ask_without_end() -> None:
    world = World([ONE])
    judged = CardJudge(CardTrust("warn", jku_origins=ORIGINS), world.fetch, world)
    for _ in range(3):
        assert (await judged.judge(sign(TWO))).standing == "untrusted"
    assert len(world.asked) == 1
    world.keys.append(TWO)
    world.ms += 30_000
    assert (await judged.judge(sign(TWO))).standing == "verified"


async def test_nothing_is_looked_at_where_it_is_off() -> None:
    assert (await judge(CardTrust(), sign(ONE))).standing == "unchecked"


async def test_card_that_the_sdk_signed_is_verified_also_with_empty_required_fields() -> None:
    private = rsa.generate_private_key(65537, 2048)
    public = PyJWK.from_dict
    numbers = private.public_key().public_numbers()
    jwk = {
        "kty": "RSA",
        "kid": "sdk",
        "n": encode_segment(numbers.n.to_bytes(256)),
        "e": encode_segment(numbers.e.to_bytes(3)),
    }
    assert public(jwk).algorithm_name == "RS256"
    header = ProtectedHeader(kid="sdk", alg="RS256", jku=None, typ="JOSE")
    signer = create_agent_card_signer(cast("str", private), header)
    bare: JsonObject = {name: value for name, value in CARD.items() if name != "unknown"}
    signed = MessageToDict(signer(ParseDict(bare, AgentCard())))
    # What an agent serves may name the empty fields or leave them out.
    for card in (signed, {**bare, "signatures": signed["signatures"]}):
        trust = CardTrust("require", (orjson.dumps(jwk).decode(),))
        assert (await judge(trust, card)).standing == "verified"
