"""Signing: the keys of this deployment, JWS over bytes, and the published JWKS.

Keys are PEM files. Each is named by its RFC 7638 thumbprint, so every instance that reads the file uses the same name.
ECDSA is deterministic here (RFC 6979): the same card has the same signature, and so the same ETag, on every instance.

The same keys sign cards, webhooks and tokens. A JWS over bytes has one signature for each signing key: during a
rotation there are two, so that a verifier with only the older key still finds one. It is detached: with the content at
hand, only header and signature are needed. ``GET /.well-known/jwks.json`` publishes the public keys for verifiers.
"""

from __future__ import annotations

import base64
import hashlib
import re
from typing import TYPE_CHECKING, Final, Literal, TypeAlias, assert_never

import orjson
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519
from cryptography.hazmat.primitives.asymmetric.utils import decode_dss_signature
from starlette.responses import Response
from starlette.routing import Route

from passerelle.core.errors import ConfigInvalid
from passerelle.core.frozen import frozen
from passerelle.core.wire.canonical import canonicalize
from passerelle.core.wire.display import explain_error
from passerelle.runtime.common.secret import Secret

if TYPE_CHECKING:
    from pathlib import Path

    from starlette.requests import Request

    from passerelle.core.wire.json import Json, JsonObject

_SEGMENT: Final = re.compile(r"[A-Za-z0-9_-]*")


def encode_segment(content: bytes) -> str:
    """Bytes as base64url without padding, the encoding of every part of a JWS (RFC 7515 section 2)."""
    return base64.urlsafe_b64encode(content).rstrip(b"=").decode("ascii")


def decode_segment(text: str) -> bytes | None:
    """The decoded bytes, or None for invalid base64url; padding is not allowed."""
    if not _SEGMENT.fullmatch(text) or len(text) % 4 == 1:
        return None
    return base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))


SigningAlgorithm: TypeAlias = Literal["ES256", "EdDSA"]
_Private: TypeAlias = ec.EllipticCurvePrivateKey | ed25519.Ed25519PrivateKey

_P256_BYTES: Final = 32
_WANTED: Final = "a private key for P-256 or Ed25519 in PEM, as passerelle signing-key makes it"


@frozen
class SigningKey:
    """One private key. ``signs`` False: its public key is published, but it signs nothing new."""

    kid: str
    algorithm: SigningAlgorithm
    jwk: JsonObject
    private: _Private
    signs: bool

    def __repr__(self) -> str:
        return f"SigningKey({self.kid}, {self.algorithm}, signs={self.signs})"

    def sign(self, content: bytes) -> bytes:
        """The raw JWS signature of ``content`` (RFC 7518 section 3.4, RFC 8037 section 3.1)."""
        if isinstance(self.private, ed25519.Ed25519PrivateKey):
            return self.private.sign(content)
        algorithm = ec.ECDSA(hashes.SHA256(), deterministic_signing=True)
        r, s = decode_dss_signature(self.private.sign(content, algorithm))
        return r.to_bytes(_P256_BYTES) + s.to_bytes(_P256_BYTES)


def mint_signing_key(algorithm: SigningAlgorithm) -> Secret:
    """A new private key as PEM (PKCS #8)."""
    match algorithm:
        case "ES256":
            made: _Private = ec.generate_private_key(ec.SECP256R1())
        case "EdDSA":
            made = ed25519.Ed25519PrivateKey.generate()
        case _:
            assert_never(algorithm)
    pem = made.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
    return Secret(pem.decode("ascii"))


def load_signing_key(path: Path, *, signs: bool = True) -> SigningKey:
    """The key in a file.

    Raises:
        ConfigInvalid: the file cannot be read, others can read it, or it contains no usable key.
    """
    try:
        if path.stat().st_mode & 0o077:
            raise ConfigInvalid(str(path), "others can read it: chmod 600 it")
        pem = Secret(path.read_text(encoding="ascii"))
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigInvalid(str(path), f"cannot be read: {explain_error(error)}") from None
    return read_signing_key(pem, str(path), signs=signs)


def read_signing_key(pem: Secret, where: str, *, signs: bool = True) -> SigningKey:
    """The key in a PEM text.

    Raises:
        ConfigInvalid: it is no usable key; ``where`` names its origin.
    """
    try:
        text = pem.get_secret_value().encode()
        private = serialization.load_pem_private_key(text, password=None)
    except (ValueError, TypeError):
        raise ConfigInvalid(where, f"should hold {_WANTED}") from None
    match private:
        case ec.EllipticCurvePrivateKey() if isinstance(private.curve, ec.SECP256R1):
            return _name(_describe_curve(private.public_key()), "ES256", private, signs=signs)
        case ed25519.Ed25519PrivateKey():
            x = private.public_key().public_bytes_raw()
            okp: JsonObject = {"kty": "OKP", "crv": "Ed25519", "x": encode_segment(x)}
            return _name(okp, "EdDSA", private, signs=signs)
        case _:
            raise ConfigInvalid(where, f"should hold {_WANTED}")


def _name(
    jwk: JsonObject, algorithm: SigningAlgorithm, private: _Private, *, signs: bool
) -> SigningKey:
    kid = encode_segment(hashlib.sha256(canonicalize(jwk)).digest())
    published: JsonObject = {**jwk, "kid": kid, "alg": algorithm, "use": "sig"}
    return SigningKey(kid, algorithm, published, private, signs)


def _describe_curve(public: ec.EllipticCurvePublicKey) -> JsonObject:
    numbers = public.public_numbers()
    x, y = (encode_segment(part.to_bytes(_P256_BYTES)) for part in (numbers.x, numbers.y))
    return {"kty": "EC", "crv": "P-256", "x": x, "y": y}


JWKS_PATH: Final = "/.well-known/jwks.json"


@frozen
class DetachedSignature:
    """One signature over content that is sent separately; both parts are base64url."""

    protected: str
    signature: str

    @property
    def detached(self) -> str:
        """``<protected>..<signature>``: the compact form without its payload (RFC 7515 appendix F)."""
        return f"{self.protected}..{self.signature}"


@frozen
class Signer:
    """Signs with the keys of this deployment. ``jku`` is the URL of the published JWKS, if known."""

    keys: tuple[SigningKey, ...]
    jku: str | None = None

    def sign(self, content: bytes) -> tuple[DetachedSignature, ...]:
        """One signature for each signing key, in the order of the configuration."""
        return tuple(self._sign(key, content, "JOSE") for key in self.keys if key.signs)

    def sign_token(self, claims: JsonObject) -> str:
        """A JWT signed by the first signing key."""
        key = next(key for key in self.keys if key.signs)
        payload = orjson.dumps(claims)
        made = self._sign(key, payload, "JWT")
        return f"{made.protected}.{encode_segment(payload)}.{made.signature}"

    def render_jwks(self) -> JsonObject:
        """The public keys, including those that no longer sign (RFC 7517 section 5)."""
        keys: list[Json] = [key.jwk for key in self.keys]
        return {"keys": keys}

    def _sign(self, key: SigningKey, content: bytes, typ: str) -> DetachedSignature:
        header = {"alg": key.algorithm, "typ": typ, "kid": key.kid}
        if self.jku is not None:
            header["jku"] = self.jku
        protected = encode_segment(orjson.dumps(header))
        signed = key.sign(f"{protected}.{encode_segment(content)}".encode("ascii"))
        return DetachedSignature(protected, encode_segment(signed))


MEDIA_TYPE: Final = "application/jwk-set+json"
_HEADERS: Final = {"Cache-Control": "public, max-age=300"}


def make_jwks_route(signer: Signer) -> Route:
    """The JWKS route; public, because it contains no secret."""
    body = orjson.dumps(signer.render_jwks())

    async def answer(_request: Request) -> Response:
        return Response(body, headers=_HEADERS, media_type=MEDIA_TYPE)

    return Route(JWKS_PATH, answer)
