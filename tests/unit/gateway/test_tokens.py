"""Tokens of identity providers: which are valid, which are not, and how often the issuer is queried."""

from __future__ import annotations

import base64
import hmac
import json
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import orjson
import pytest
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from jwt.warnings import InsecureKeyLengthWarning

from passerelle.core.credentials import digest_token
from passerelle.core.errors import IssuerUnavailable, Unauthenticated
from passerelle.core.principal import AccessScope, Principal
from passerelle.gateway.auth.jwks import (
    FRESH_MS,
    PAUSE_MS,
    STALE_MS,
    KeySet,
    read_discovery,
    read_keys,
)
from passerelle.gateway.auth.tokens import Issuer, Tokens
from passerelle.runtime.common.clock import SystemClock
from tests.support.identity import ISSUER, Private, ec_key, ed_key, issuer, publish, rsa_key, sign
from tests.support.waiting import wait_until

pytestmark = pytest.mark.anyio


@dataclass
class Published:
    """A key set that a test changes; ``reads`` counts how often it was fetched."""

    keys: list[dict[str, Any]]
    reads: int = 0
    away: bool = False

    async def fetch(self) -> bytes:
        self.reads += 1
        if self.away:
            raise IssuerUnavailable("away")
        return orjson.dumps({"keys": self.keys})


@dataclass
class StillClock:
    """The time at which a test began; only the test advances it, however long it runs."""

    began_ms: int = field(default_factory=SystemClock().now_ms)
    ahead_ms: int = 0

    def now_ms(self) -> int:
        return self.began_ms + self.ahead_ms


@dataclass
class Desk:
    """Verifies tokens of one issuer."""

    published: Published
    clock: StillClock = field(default_factory=StillClock)
    tokens: Tokens = field(init=False)
    settings: dict[str, object] = field(default_factory=dict[str, object])

    def __post_init__(self) -> None:
        keys = KeySet("corp", self.published, self.clock)
        self.tokens = Tokens([Issuer(issuer(**self.settings), keys)], self.clock)

    async def find(self, token: str) -> Principal | None:
        return await self.tokens.find(token, digest_token(token))


@pytest.fixture
def desk() -> Desk:
    return Desk(Published([publish(rsa_key("a"), "a")]))


async def test_token_becomes_a_principal_of_its_issuer(desk: Desk) -> None:
    found = await desk.find(sign(rsa_key("a"), "a"))
    assert found == Principal(
        id="corp:ada",
        scopes=frozenset({AccessScope.CALL, AccessScope.READ_TASKS}),
        agents=frozenset({"echo"}),
    )


@pytest.mark.parametrize(
    ("key", "algorithm"),
    [(rsa_key("a"), "PS256"), (ec_key("e"), "ES256"), (ed_key("o"), "EdDSA")],
    ids=["PS256", "ES256", "EdDSA"],
)
async def test_allowed_algorithms_are_taken(key: Private, algorithm: str) -> None:
    desk = Desk(Published([publish(key, "k")]))
    assert await desk.find(sign(key, "k", algorithm)) is not None


def forge_none() -> str:
    header, body, _ = sign(rsa_key("a"), "a").split(".")
    bare = base64.urlsafe_b64encode(json.dumps({"alg": "none", "kid": "a"}).encode())
    del header
    return f"{bare.decode().rstrip('=')}.{body}."


def forge_shared_secret() -> str:
    """The public key taken for a shared secret: the old trick against verifiers that believe the header."""
    public = rsa_key("a").public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    header = base64.urlsafe_b64encode(b'{"alg":"HS256","kid":"a"}').rstrip(b"=")
    body = sign(rsa_key("a"), "a").split(".")[1].encode()
    signed = hmac.digest(public, header + b"." + body, "sha256")
    mac = base64.urlsafe_b64encode(signed).rstrip(b"=")
    return b".".join((header, body, mac)).decode()


@pytest.mark.parametrize(
    "make",
    [
        lambda: sign(rsa_key("b"), "a"),
        lambda: sign(rsa_key("a"), "a", aud="somebody-else"),
        lambda: sign(rsa_key("a"), "a", aud=None),
        lambda: sign(rsa_key("a"), "a", iss="https://evil.example.com"),
        lambda: sign(rsa_key("a"), "a", exp=None),
        lambda: sign(rsa_key("a"), "a", sub=None),
        lambda: sign(rsa_key("a"), "a", sub=""),
        lambda: sign(rsa_key("a"), "a", sub="two\nlines"),
        lambda: sign(rsa_key("a"), "a", sub="x" * 300),
        lambda: sign(rsa_key("a"), "a", nbf=4_000_000_000),
        lambda: sign(rsa_key("a"), "a", algorithm="RS512"),
        lambda: sign(rsa_key("a"), None) + "x",
        forge_none,
        forge_shared_secret,
        lambda: "..",
        lambda: "a.b.c",
        lambda: "eyJhbGciOiJSUzI1NiJ9.e30.AA",
    ],
)
async def test_any_other_token_has_no_principal(desk: Desk, make: Callable[[], str]) -> None:
    assert await desk.find(make()) is None


async def test_expired_token_is_reported_only_if_its_signature_is_valid(desk: Desk) -> None:
    with pytest.raises(Unauthenticated, match="expired"):
        await desk.find(sign(rsa_key("a"), "a", exp=1_000_000_000))
    assert await desk.find(sign(rsa_key("b"), "a", exp=1_000_000_000)) is None


async def test_clocks_may_be_apart_as_far_as_configured(desk: Desk) -> None:
    now_s = desk.clock.now_ms() // 1000
    assert await desk.find(sign(rsa_key("a"), "a", exp=now_s - 10)) is not None
    with pytest.raises(Unauthenticated):
        await desk.find(sign(rsa_key("a"), "a", exp=now_s - 60))


async def test_token_that_held_is_not_verified_again_until_it_expires(desk: Desk) -> None:
    token = sign(rsa_key("a"), "a")
    first = await desk.find(token)
    assert await desk.find(token) is first
    desk.clock.ahead_ms = 400_000
    assert await desk.find(token) is not first


async def test_withdrawn_key_ends_the_tokens_that_it_signed(desk: Desk) -> None:
    token = sign(rsa_key("a"), "a")
    assert await desk.find(token) is not None
    desk.published.keys = [publish(rsa_key("b"), "b")]
    desk.clock.ahead_ms = PAUSE_MS
    assert await desk.find(sign(rsa_key("b"), "b")) is not None
    assert await desk.find(token) is None


async def test_unknown_key_id_is_looked_up_at_most_once_in_a_while(desk: Desk) -> None:
    for number in range(50):
        assert await desk.find(sign(rsa_key("a"), f"unknown-{number}")) is None
    assert desk.published.reads == 1
    desk.clock.ahead_ms = PAUSE_MS
    assert await desk.find(sign(rsa_key("a"), "unknown")) is None
    assert desk.published.reads == 2


async def test_old_keys_are_read_again_in_the_background(desk: Desk) -> None:
    await desk.find(sign(rsa_key("a"), "a"))
    desk.clock.ahead_ms = FRESH_MS + 1
    assert await desk.find(sign(rsa_key("a"), "a", sub="bob", exp=4_000_000_000)) is not None
    assert await wait_until(lambda: desk.published.reads == 2, 15, "the keys are read again")


async def test_known_keys_are_used_for_a_day_while_the_issuer_is_away(desk: Desk) -> None:
    await desk.find(sign(rsa_key("a"), "a"))
    desk.published.away = True
    desk.clock.ahead_ms = FRESH_MS + 1
    late = sign(rsa_key("a"), "a", sub="bob", exp=4_000_000_000)
    assert await desk.find(late) is not None
    desk.clock.ahead_ms = STALE_MS + 1
    with pytest.raises(IssuerUnavailable):
        await desk.find(sign(rsa_key("a"), "a", sub="eve", exp=4_000_000_000))


async def test_token_of_an_issuer_whose_keys_were_never_seen_is_neither_taken_nor_refused() -> None:
    desk = Desk(Published([], away=True))
    for _ in range(3):
        with pytest.raises(IssuerUnavailable):
            await desk.find(sign(rsa_key("a"), "a"))
    assert desk.published.reads == 1


async def test_one_key_without_an_id_fits_a_token_without_an_id() -> None:
    desk = Desk(Published([publish(rsa_key("a"), None)]))
    assert await desk.find(sign(rsa_key("a"), None)) is not None
    desk = Desk(Published([publish(rsa_key("a"), "a"), publish(rsa_key("b"), "b")]))
    assert await desk.find(sign(rsa_key("a"), None)) is None


async def test_key_for_another_algorithm_or_too_short_is_not_used() -> None:
    other = Desk(Published([publish(rsa_key("a"), "a", alg="PS256")]))
    assert await other.find(sign(rsa_key("a"), "a", "RS256")) is None
    assert await other.find(sign(rsa_key("a"), "a", "PS256")) is not None
    with pytest.warns(InsecureKeyLengthWarning):
        token = sign(rsa_key("short", 1024), "a")
    short = Desk(Published([publish(rsa_key("short", 1024), "a")]))
    assert await short.find(token) is None


async def test_scopes_and_agents_of_a_token_narrow_and_never_widen() -> None:
    claims = {"scopes": "scope", "agents": "agents", "tenant": "tid"}
    desk = Desk(
        Published([publish(rsa_key("a"), "a")]),
        settings={
            "claims": claims,
            "scopes": ["a2a:call", "tasks:read"],
            "may_call": ["echo", "pay"],
        },
    )
    scope, agents = "a2a:call approvals:decide", ["pay", "root"]
    found = await desk.find(sign(rsa_key("a"), "a", scope=scope, agents=agents, tid="acme"))
    assert found is not None
    assert (found.tenant, found.scopes, found.agents) == (
        "acme",
        frozenset({AccessScope.CALL}),
        frozenset({"pay"}),
    )
    silent = await desk.find(sign(rsa_key("a"), "a", tid="acme"))
    assert silent is not None
    assert (silent.scopes, silent.agents) == (frozenset(), frozenset())
    assert await desk.find(sign(rsa_key("a"), "a")) is None


async def test_star_of_an_issuer_is_narrowed_by_the_token() -> None:
    desk = Desk(
        Published([publish(rsa_key("a"), "a")]),
        settings={"may_call": ["*"], "claims": {"agents": "agents"}},
    )
    found = await desk.find(sign(rsa_key("a"), "a", agents="pay echo"))
    assert found is not None
    assert found.agents == frozenset({"pay", "echo"})


@pytest.mark.parametrize("body", [b"", b"[]", b"{}", b'{"keys":{}}', b'{"keys":' + b"[{}," * 101])
def test_invalid_key_set_is_reported(body: bytes) -> None:
    with pytest.raises(IssuerUnavailable):
        read_keys(body)


def test_private_and_encryption_keys_are_left_out() -> None:
    good = publish(rsa_key("a"), "a")
    odd = [{**good, "use": "enc"}, {**good, "d": "x"}, {"kty": "oct", "k": "AA"}, 7]
    assert read_keys(orjson.dumps({"keys": [good, *odd]})) == [good]


def test_discovery_leads_to_the_keys_of_that_issuer_and_no_other() -> None:
    good = {"issuer": ISSUER, "jwks_uri": "https://keys.example.com/set"}
    assert read_discovery(orjson.dumps(good), ISSUER) == "https://keys.example.com/set"
    for change in (
        {"issuer": "https://evil.example.com"},
        {"jwks_uri": "http://keys.example.com/set"},
        {"jwks_uri": "file:///etc/passwd"},
        {"jwks_uri": None},
        {"jwks_uri": "https://[::1/set"},
        {"jwks_uri": "https://keys.example.com:many/set"},
        {"jwks_uri": "https:///set"},
    ):
        with pytest.raises(IssuerUnavailable):
            read_discovery(orjson.dumps(good | change), ISSUER)
    with pytest.raises(IssuerUnavailable):
        read_discovery(b"<html>", ISSUER)


async def test_remembered_token_alone_has_old_keys_read_and_ends_with_its_key(desk: Desk) -> None:
    token = sign(rsa_key("a"), "a", exp=desk.clock.now_ms() // 1000 + 3_600)
    assert await desk.find(token) is not None
    desk.published.keys = [publish(rsa_key("b"), "b")]
    desk.clock.ahead_ms += FRESH_MS + 1

    async def is_refused() -> bool:
        return await desk.find(token) is None

    assert await wait_until(is_refused, 15, "the token goes with its key")
    assert desk.published.reads == 2
