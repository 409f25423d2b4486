"""Public keys of devices, and what was signed with them: Ed25519, or P-256 as browsers have it (``r`` and ``s``)."""

from __future__ import annotations

import base64
import hashlib
from typing import Final

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ec import (
    ECDSA,
    SECP256R1,
    EllipticCurvePublicKey,
)
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from cryptography.hazmat.primitives.asymmetric.utils import encode_dss_signature
from cryptography.hazmat.primitives.hashes import SHA256

from passerelle.core.errors import InvalidInput
from passerelle.core.payloads.device import DeviceKey, KeyAlgorithm

SIGNATURE_BYTES: Final = 64


def read_key(algorithm: KeyAlgorithm, public: str) -> DeviceKey:
    """The key of its text; its id is a part of its hash.

    Raises:
        InvalidInput: no key of that kind.
    """
    raw = _decode(public, "publicKey")
    _load(algorithm, raw)
    named = hashlib.sha256(raw).hexdigest()[:32]
    return DeviceKey(f"key_{named}", algorithm, _encode(raw))


def holds(key: DeviceKey, message: bytes, signature: str) -> bool:
    """Whether ``signature`` (base64url, 64 bytes) was made over ``message`` with the key."""
    try:
        raw = _decode(signature, "signature")
        if len(raw) != SIGNATURE_BYTES:
            return False
        public = _load(key.algorithm, _decode(key.public, "publicKey"))
        if isinstance(public, Ed25519PublicKey):
            public.verify(raw, message)
        else:
            half = SIGNATURE_BYTES // 2
            pair = (int.from_bytes(raw[:half], "big"), int.from_bytes(raw[half:], "big"))
            public.verify(encode_dss_signature(*pair), message, ECDSA(SHA256()))
    except (InvalidSignature, InvalidInput):
        return False
    return True


def _load(algorithm: KeyAlgorithm, raw: bytes) -> Ed25519PublicKey | EllipticCurvePublicKey:
    try:
        if algorithm == "Ed25519":
            return Ed25519PublicKey.from_public_bytes(raw)
        return EllipticCurvePublicKey.from_encoded_point(SECP256R1(), raw)
    except ValueError:
        raise InvalidInput("publicKey", f"is no key for {algorithm}") from None


def _decode(text: str, where: str) -> bytes:
    try:
        return base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)
    except ValueError:
        raise InvalidInput(where, "is not base64url") from None


def _encode(raw: bytes) -> str:
    return base64.urlsafe_b64encode(raw).rstrip(b"=").decode()
