"""Device keys: verifies public keys and signatures, and keeps the key of this machine as a device.

Keys are Ed25519, or P-256 as browsers encode it (``r`` and ``s``).

The command line signs its decisions with the key of this machine, stored next to the owner's token and readable by the
owner only. To the gateway this machine is an ordinary paired device: it is listed, and can be revoked.
"""

from __future__ import annotations

import base64
import hashlib
import json
from typing import TYPE_CHECKING, Final

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ec import ECDSA, SECP256R1, EllipticCurvePublicKey
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.asymmetric.utils import encode_dss_signature
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from passerelle.core.errors import ConfigInvalid, InvalidInput
from passerelle.core.frozen import frozen
from passerelle.core.payloads.device import DeviceKey, KeyAlgorithm
from passerelle.core.wire.display import explain_error
from passerelle.permission_bridge.devices.own_device import FILE, is_device
from passerelle.runtime.common.private_file import load_or_mint

if TYPE_CHECKING:
    from pathlib import Path

SIGNATURE_BYTES: Final = 64


def read_key(algorithm: KeyAlgorithm, public: str) -> DeviceKey:
    """Parses a public key; its id is derived from its hash.

    Raises:
        InvalidInput: not a key of that algorithm.
    """
    raw = _decode(public, "publicKey")
    _load(algorithm, raw)
    named = hashlib.sha256(raw).hexdigest()[:32]
    return DeviceKey(f"key_{named}", algorithm, encode_base64url(raw))


def holds(key: DeviceKey, message: bytes, signature: str) -> bool:
    """Whether ``signature`` (base64url, 64 bytes) is valid for ``message`` under the key."""
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
        raise InvalidInput("publicKey", f"is not a valid key for {algorithm}") from None


def _decode(text: str, where: str) -> bytes:
    try:
        return base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)
    except ValueError:
        raise InvalidInput(where, "is not base64url") from None


def encode_base64url(raw: bytes) -> str:
    """Without padding."""
    return base64.urlsafe_b64encode(raw).rstrip(b"=").decode()


@frozen
class OwnDevice:
    """The device id that the gateway assigned, and the private key."""

    device_id: str
    key: Ed25519PrivateKey

    def sign(self, message: bytes) -> str:
        """A signature in base64url."""
        return encode_base64url(self.key.sign(message))


def make_key() -> Ed25519PrivateKey:
    """A new key."""
    return Ed25519PrivateKey.generate()


def read_public(key: Ed25519PrivateKey) -> str:
    """The public key, in base64url."""
    return encode_base64url(key.public_key().public_bytes(Encoding.Raw, PublicFormat.Raw))


def sign(key: Ed25519PrivateKey, message: bytes) -> str:
    """A signature in base64url."""
    return encode_base64url(key.sign(message))


def save_own_device(data_dir: Path, device_id: str, key: Ed25519PrivateKey) -> None:
    """Stores the device of this machine, replacing an earlier one.

    Raises:
        ConfigInvalid: the file cannot be written.
    """
    path = data_dir / FILE
    try:
        path.unlink(missing_ok=True)
    except OSError as error:
        raise ConfigInvalid(str(path), f"cannot be replaced: {explain_error(error)}") from None
    kept = json.dumps({"deviceId": device_id, "key": encode_base64url(key.private_bytes_raw())})
    load_or_mint(path, lambda: kept)


def load_own_device(data_dir: Path) -> OwnDevice | None:
    """The device of this machine; None if it is not paired.

    Raises:
        ConfigInvalid: others can read the file, or its content is invalid.
    """
    path = data_dir / FILE
    if not is_device(data_dir):
        return None
    text = load_or_mint(path, str).text
    try:
        kept = json.loads(text)
        raw = base64.urlsafe_b64decode(kept["key"] + "==")
        return OwnDevice(str(kept["deviceId"]), Ed25519PrivateKey.from_private_bytes(raw))
    except (ValueError, KeyError, TypeError):
        raise ConfigInvalid(
            str(path), "is not a valid device file: delete it and pair this machine again"
        ) from None
