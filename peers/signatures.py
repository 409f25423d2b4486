"""Checks whether a peer's card is signed by a key that the operator trusts (A2A 1.0 section 8.4.3).

A key is trusted if it is pinned, or listed in a JWKS at an origin that the operator named. It verifies the card as it
was received, never one that went through a parser. What a card states about itself, including its algorithm, is only
compared with what is allowed: no card chooses ``none``, a shared secret, or where its keys come from.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal, TypeAlias, cast

import jwt
import orjson

from passerelle.a2a_mapping.card_payload import list_payloads
from passerelle.a2a_mapping.members import objects_at, text_at
from passerelle.core.errors import InvalidInput, RemoteError
from passerelle.core.frozen import frozen
from passerelle.peers.origin import origin_of
from passerelle.runtime.common.signatures import decode_segment, encode_segment

if TYPE_CHECKING:
    from collections.abc import Iterator

    from passerelle.core.peer import SignatureStatus
    from passerelle.core.ports.chance import Clock
    from passerelle.core.wire.json import JsonObject

SignaturePolicy: TypeAlias = Literal["off", "warn", "require"]
CardAlgorithm: TypeAlias = Literal["ES256", "ES384", "ES512", "EdDSA", "RS256", "PS256"]
DEFAULT_ALGORITHMS: Final[tuple[CardAlgorithm, ...]] = ("ES256", "EdDSA", "RS256", "PS256")
MAX_SIGNATURES: Final = 8
_FRESH_MS: Final = 600_000
_RETRY_MS: Final = 30_000
"""How soon a missing key is looked up again: cards must not cause endless requests."""

Fetch: TypeAlias = Callable[[str], Awaitable[bytes]]
"""Fetches the body of a URL, without our credentials. Raises RemoteError."""


@frozen
class CardTrust:
    """The operator's signature policy for one agent. ``keys`` are pinned public keys, each as the text of a JWK."""

    policy: SignaturePolicy = "off"
    keys: tuple[str, ...] = ()
    jku_origins: frozenset[str] = frozenset()
    algorithms: tuple[CardAlgorithm, ...] = DEFAULT_ALGORITHMS
    revoked: frozenset[str] = frozenset()


@frozen
class SignatureVerdict:
    """The result of a check and its reason; ``kids`` are the keys with valid signatures."""

    standing: SignatureStatus
    reason: str = ""
    kids: frozenset[str] = frozenset()


@frozen
class _Claim:
    """One signature of a card."""

    protected: str
    signature: bytes
    algorithm: str
    kid: str
    jku: str


@dataclass(slots=True)
class _KeySet:
    keys: list[JsonObject]
    asked_ms: int


class CardJudge:
    """Checks the cards of one peer; remembers which keys signed the last valid one."""

    def __init__(self, trust: CardTrust, fetch: Fetch, clock: Clock) -> None:
        self._trust = trust
        self._fetch = fetch
        self._clock = clock
        self._pinned: list[JsonObject] = [orjson.loads(key) for key in trust.keys]
        self._sets: dict[str, _KeySet] = {}
        self._signed_by: frozenset[str] = frozenset()

    async def judge(self, card: JsonObject) -> SignatureVerdict:
        """Checks ``card``, as it was received."""
        if self._trust.policy == "off":
            return SignatureVerdict("unchecked")
        verdict = await self._verify(card)
        known = self._signed_by
        if verdict.standing == "verified":
            if known and not known & verdict.kids and not self._is_pinned(verdict.kids):
                # Rotating keys sign together for a while. A new key alone could be from someone who took over the JWKS.
                changed = f"signed by {_name(verdict.kids)}, previously by {_name(known)}"
                if self._trust.policy == "require":
                    return SignatureVerdict("changed", changed)
                verdict = SignatureVerdict("changed", changed, verdict.kids)
            self._signed_by = verdict.kids
        elif known:
            return SignatureVerdict(
                verdict.standing, f"{verdict.reason}; previously signed by {_name(known)}"
            )
        return verdict

    def _is_pinned(self, kids: frozenset[str]) -> bool:
        return any(text_at(key, "kid") in kids for key in self._pinned)

    async def _verify(self, card: JsonObject) -> SignatureVerdict:
        claims = list(_read_claims(card))
        if not claims:
            return SignatureVerdict("unsigned", "there is no readable signature")
        try:
            payloads = [encode_segment(payload) for payload in list_payloads(card)]
        except InvalidInput as error:
            return SignatureVerdict("untrusted", f"the card cannot be verified: {error.reason}")
        held: set[str] = set()
        reasons: list[str] = []
        for claim in claims:
            reason = await self._try(claim, payloads)
            if reason is None:
                held.add(claim.kid)
            else:
                reasons.append(reason)
        if held:
            return SignatureVerdict("verified", kids=frozenset(held))
        return SignatureVerdict("untrusted", "; ".join(reasons))

    async def _try(self, claim: _Claim, payloads: list[str]) -> str | None:
        """None if the signature is valid, else why it is not accepted."""
        if claim.algorithm not in self._trust.algorithms:
            return f"algorithm {claim.algorithm[:20]!r} is not allowed"
        if claim.kid in self._trust.revoked:
            return f"key {claim.kid[:80]!r} is revoked"
        keys, why = await self._find_keys(claim)
        if not keys:
            return why
        for key in keys:
            if any(_holds(claim, key, payload) for payload in payloads):
                return None
        return f"the signature of key {claim.kid[:80]!r} is not valid"

    async def _find_keys(self, claim: _Claim) -> tuple[list[JsonObject], str]:
        pinned = [key for key in self._pinned if text_at(key, "kid") == claim.kid]
        if pinned:
            return pinned, ""
        if not claim.jku:
            return [], f"key {claim.kid[:80]!r} is not pinned"
        origin = origin_of(claim.jku)
        if origin is None or origin not in self._trust.jku_origins:
            return [], f"keys of {str(origin)[:120]} are not trusted"
        try:
            keys = await self._load(claim.jku, claim.kid)
        except RemoteError as error:
            return [], f"its keys cannot be read: {error.message}"
        return keys, f"there is no key {claim.kid[:80]!r} at {origin}"

    async def _load(self, url: str, kid: str) -> list[JsonObject]:
        kept = self._sets.get(url)
        now_ms = self._clock.now_ms()
        if kept is None or now_ms - kept.asked_ms >= (
            _FRESH_MS if _select(kept.keys, kid) else _RETRY_MS
        ):
            kept = _KeySet(_read_key_set(await self._fetch(url)), now_ms)
            self._sets[url] = kept
        return _select(kept.keys, kid)


def _read_claims(card: JsonObject) -> Iterator[_Claim]:
    for entry in objects_at(card, "signatures")[:MAX_SIGNATURES]:
        protected = text_at(entry, "protected")
        signature = decode_segment(text_at(entry, "signature"))
        header = _read_object(decode_segment(protected) or b"")
        kid = text_at(header, "kid")
        # An unknown critical parameter makes a signature invalid (RFC 7515 section 4.1.11).
        if signature and kid and "crit" not in header:
            yield _Claim(protected, signature, text_at(header, "alg"), kid, text_at(header, "jku"))


def _holds(claim: _Claim, key: JsonObject, payload: str) -> bool:
    if text_at(key, "alg") not in {"", claim.algorithm} or text_at(key, "use") not in {"", "sig"}:
        return False
    try:
        known = jwt.PyJWK.from_dict(key, claim.algorithm)
        signed = f"{claim.protected}.{payload}".encode("ascii")
        return known.Algorithm.verify(signed, known.key, claim.signature)
    except (jwt.PyJWTError, ValueError, TypeError):
        # The key is of another kind, or the signature has another length.
        return False


def _read_key_set(body: bytes) -> list[JsonObject]:
    return objects_at(_read_object(body), "keys")


def _read_object(body: bytes) -> JsonObject:
    try:
        value: object = orjson.loads(body)
    except orjson.JSONDecodeError:
        return {}
    return cast("JsonObject", value) if isinstance(value, dict) else {}


def _select(keys: list[JsonObject], kid: str) -> list[JsonObject]:
    return [key for key in keys if text_at(key, "kid") == kid]


def _name(kids: frozenset[str]) -> str:
    return ", ".join(sorted(kid[:80] for kid in kids))
