"""This machine as a device of its own: the key with which the command line signs what it decides.

It is kept beside the owner's token, for the owner alone. The gateway knows it as a paired device like any other, so it
is listed, and revoked when the machine is given away.
"""

from __future__ import annotations

import base64
import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from passerelle.core.errors import ConfigInvalid
from passerelle.runtime.common.private_file import load_or_mint

if TYPE_CHECKING:
    from pathlib import Path

FILE: Final = "own-device"


@dataclass(frozen=True, slots=True)
class OwnDevice:
    """The id that the gateway gave, and the private key."""

    device_id: str
    key: Ed25519PrivateKey

    def sign(self, message: bytes) -> str:
        """A signature in base64url."""
        return _encode(self.key.sign(message))


def make_key() -> Ed25519PrivateKey:
    """A new key."""
    return Ed25519PrivateKey.generate()


def read_public(key: Ed25519PrivateKey) -> str:
    """Its public half, in base64url."""
    return _encode(key.public_key().public_bytes(Encoding.Raw, PublicFormat.Raw))


def sign(key: Ed25519PrivateKey, message: bytes) -> str:
    """A signature in base64url."""
    return _encode(key.sign(message))


def save_own_device(data_dir: Path, device_id: str, key: Ed25519PrivateKey) -> None:
    """Keeps the device of this machine, in place of an earlier one.

    Raises:
        ConfigInvalid: the file cannot be written.
    """
    path = data_dir / FILE
    try:
        path.unlink(missing_ok=True)
    except OSError as error:
        raise ConfigInvalid(str(path), f"cannot be replaced: {error}") from None
    kept = json.dumps({"deviceId": device_id, "key": _encode(key.private_bytes_raw())})
    load_or_mint(path, lambda: kept)


def load_own_device(data_dir: Path) -> OwnDevice | None:
    """The device of this machine; None where it is none, or somebody else's.

    Raises:
        ConfigInvalid: others can read the file, or it holds something else.
    """
    path = data_dir / FILE
    if not path.exists():
        return None
    text = load_or_mint(path, str).text
    try:
        kept = json.loads(text)
        raw = base64.urlsafe_b64decode(kept["key"] + "==")
        return OwnDevice(str(kept["deviceId"]), Ed25519PrivateKey.from_private_bytes(raw))
    except (ValueError, KeyError, TypeError):
        raise ConfigInvalid(
            str(path), "is no device: delete it and pair this machine anew"
        ) from None


def _encode(raw: bytes) -> str:
    return base64.urlsafe_b64encode(raw).rstrip(b"=").decode()
