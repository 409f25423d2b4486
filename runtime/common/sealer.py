"""Secrets at rest: what is stored for later use (push credentials, signing keys) is sealed with ``secret_key``.

A sealed value reads ``1.<key id>.<base64url of nonce, ciphertext and tag>`` (AES-256-GCM). It is bound to the place
where it is stored, so a copy in another record does not open there. The key id is a part of the key's hash: with
several keys the first one seals and all of them open, which allows key rotation.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Callable, Iterable, Mapping
from typing import Final, TypeAlias

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from passerelle.core.errors import ConfigInvalid
from passerelle.core.frozen import frozen
from passerelle.runtime.common.secret import Secret

KEY_BYTES: Final = 32
KEY_FILE: Final = "secret-key"
SETTING: Final = "secret_key"
_NONCE_BYTES: Final = 12
_VERSION: Final = b"1"

Draw: TypeAlias = Callable[[int], int]
"""``draw(bits)``: randomness, as provided by ``core.ports.chance.Ids``."""


@frozen
class Sealer:
    """Seals with the current key, opens with every known one."""

    current: str
    keys: Mapping[str, AESGCM]
    draw: Draw

    def seal(self, plain: bytes, place: str) -> bytes:
        """The sealed form of a value stored at ``place`` (any text that identifies the place permanently)."""
        nonce = self.draw(_NONCE_BYTES * 8).to_bytes(_NONCE_BYTES)
        box = nonce + self.keys[self.current].encrypt(nonce, plain, place.encode())
        return b".".join((_VERSION, self.current.encode(), base64.urlsafe_b64encode(box)))

    def unseal(self, sealed: bytes, place: str) -> bytes:
        """The value that was sealed for ``place``.

        Raises:
            ConfigInvalid: the key is not known here, or the value was not sealed for this place.
        """
        version, _, rest = sealed.partition(b".")
        key_id, _, text = rest.partition(b".")
        key = self.keys.get(key_id.decode(errors="replace"))
        if version != _VERSION or key is None:
            raise ConfigInvalid(SETTING, "the key of a stored secret is not among those given")
        try:
            box = base64.urlsafe_b64decode(text)
            return key.decrypt(box[:_NONCE_BYTES], box[_NONCE_BYTES:], place.encode())
        except (InvalidTag, ValueError):
            raise ConfigInvalid(SETTING, "a stored secret was changed or moved") from None

    def is_current(self, sealed: bytes) -> bool:
        """Whether a value is sealed with the current key; others are resealed when they are written next."""
        return sealed.startswith(_VERSION + b"." + self.current.encode() + b".")


def make_sealer(keys: Iterable[bytes], draw: Draw) -> Sealer:
    """A sealer over keys of 32 bytes; the first one seals."""
    by_id = {_name_key(key): AESGCM(key) for key in keys}
    return Sealer(next(iter(by_id)), by_id, draw)


def mint_key(draw: Draw) -> Secret:
    """A new key in the form in which it is configured."""
    return Secret(base64.urlsafe_b64encode(draw(KEY_BYTES * 8).to_bytes(KEY_BYTES)).decode())


def read_keys(text: Secret, where: str) -> list[bytes]:
    """The keys in a text: base64 or hex of 32 bytes each, separated by white space or commas.

    Raises:
        ConfigInvalid: there is none, or one has another form.
    """
    keys = [_read_key(word, where) for word in text.get_secret_value().replace(",", " ").split()]
    if not keys:
        raise ConfigInvalid(where, "holds no key")
    return keys


def _read_key(word: str, where: str) -> bytes:
    try:
        if len(word) == 2 * KEY_BYTES:
            return bytes.fromhex(word)
        key = base64.b64decode(word.translate(_URLSAFE), validate=True)
    except ValueError:
        key = b""
    if len(key) != KEY_BYTES:
        raise ConfigInvalid(where, "should be 32 bytes in base64 or hex: openssl rand -base64 32")
    return key


def _name_key(key: bytes) -> str:
    return hashlib.sha256(b"passerelle key id" + key).hexdigest()[:8]


_URLSAFE: Final = str.maketrans("-_", "+/")
