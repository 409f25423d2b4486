"""JWS over bytes by every key that signs, detached: who has the content needs header and signature only.

Cards, webhooks and tokens are signed by the same keys. While keys rotate there are two signatures, so that a verifier
that knows only the older key still finds one.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import orjson

from passerelle.runtime.common.signing.segments import encode_segment

if TYPE_CHECKING:
    from passerelle.core.wire.json import Json, JsonObject
    from passerelle.runtime.common.signing.keys import SigningKey

JWKS_PATH: Final = "/.well-known/jwks.json"


@dataclass(frozen=True, slots=True)
class Signature:
    """One signature over content that travels beside it; both parts are base64url."""

    protected: str
    signature: str

    @property
    def detached(self) -> str:
        """``<protected>..<signature>``: the compact form without its payload (RFC 7515 appendix F)."""
        return f"{self.protected}..{self.signature}"


@dataclass(frozen=True, slots=True)
class Signer:
    """Signs with the keys of this deployment. ``jku`` is where verifiers find the public halves, if it is known."""

    keys: tuple[SigningKey, ...]
    jku: str | None = None

    def sign(self, content: bytes) -> tuple[Signature, ...]:
        """One signature by each key that signs, in the order of the configuration."""
        return tuple(self._sign(key, content, "JOSE") for key in self.keys if key.signs)

    def sign_token(self, claims: JsonObject) -> str:
        """A JWT by the first key that signs."""
        key = next(key for key in self.keys if key.signs)
        payload = orjson.dumps(claims)
        made = self._sign(key, payload, "JWT")
        return f"{made.protected}.{encode_segment(payload)}.{made.signature}"

    def render_jwks(self) -> JsonObject:
        """The public halves of all keys, those that sign no more as well (RFC 7517 section 5)."""
        keys: list[Json] = [key.jwk for key in self.keys]
        return {"keys": keys}

    def _sign(self, key: SigningKey, content: bytes, typ: str) -> Signature:
        header = {"alg": key.algorithm, "typ": typ, "kid": key.kid}
        if self.jku is not None:
            header["jku"] = self.jku
        protected = encode_segment(orjson.dumps(header))
        signed = key.sign(f"{protected}.{encode_segment(content)}".encode("ascii"))
        return Signature(protected, encode_segment(signed))
