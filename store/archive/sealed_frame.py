"""A frame as stored in a segment: sealed with the data key of its session's owner.

Form (1 byte) · shard of the owner (1) · id of the key (8) · nonce (12) · AES-256-GCM of the packed session, with its
tag (16). It is bound to the runtime, the shard of the session and all bytes before the nonce. Session and sequences
are inside the seal: a reader with the id of a task does not know them before the frame is opened.
"""

from __future__ import annotations

import secrets
from dataclasses import field
from typing import Final, NamedTuple, Self

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from passerelle.core.frozen import frozen
from passerelle.core.ids import ALL_SHARDS, Shard

_FORM: Final = b"\x01"
_ID_BYTES: Final = 8
_NAME: Final = slice(len(_FORM), len(_FORM) + 1 + _ID_BYTES)
_HEAD: Final = _NAME.stop
_NONCE_BYTES: Final = 12
_TAG_BYTES: Final = 16
KEY_BYTES: Final = 32
SEAL_BYTES: Final = _HEAD + _NONCE_BYTES + _TAG_BYTES
"""Bytes that sealing adds to a frame."""


class KeyName(NamedTuple):
    """Names a data key: the shard of its owner, and its random id, which reveals nothing about the owner."""

    shard: Shard
    id: bytes

    @classmethod
    def draw(cls, shard: Shard) -> Self:
        """A new name."""
        return cls(shard, secrets.token_bytes(_ID_BYTES))

    @classmethod
    def read(cls, stored: bytes) -> Self:
        """Reads the name from its 9 bytes.

        Raises:
            ValueError: it is no name.
        """
        if len(stored) != 1 + _ID_BYTES or stored[0] >= len(ALL_SHARDS):
            message = "no name of a data key"
            raise ValueError(message)
        return cls(ALL_SHARDS[stored[0]], stored[1:])

    @property
    def stored(self) -> bytes:
        """The name in 9 bytes."""
        return bytes((self.shard.number,)) + self.id

    @property
    def text(self) -> str:
        """The name in 18 hexadecimal digits."""
        return self.stored.hex()


@frozen
class OwnerKey:
    """The data key of an owner."""

    name: KeyName
    secret: bytes = field(repr=False)
    cipher: AESGCM = field(repr=False)

    @classmethod
    def of(cls, name: KeyName, secret: bytes) -> Self:
        """The key with these bytes."""
        return cls(name, secret, AESGCM(secret))


class FramePlace(NamedTuple):
    """What a sealed frame is bound to: it opens nowhere else."""

    runtime_id: str
    shard: Shard


def seal_frame(packed: bytes, key: OwnerKey, place: FramePlace) -> bytes:
    """The sealed form of a packed session."""
    head, nonce = _FORM + key.name.stored, secrets.token_bytes(_NONCE_BYTES)
    return head + nonce + key.cipher.encrypt(nonce, packed, _bind(head, place))


def read_key_name(sealed: bytes) -> KeyName:
    """The key that a sealed frame needs.

    Raises:
        ValueError: the bytes are no sealed frame.
    """
    if len(sealed) < SEAL_BYTES or not sealed.startswith(_FORM):
        message = "no sealed frame"
        raise ValueError(message)
    return KeyName.read(sealed[_NAME])


def open_frame(sealed: bytes, key: OwnerKey, place: FramePlace) -> bytes:
    """The packed session of a sealed frame.

    Raises:
        ValueError: it was changed or moved, or has another key.
    """
    body = sealed[_HEAD:]
    try:
        return key.cipher.decrypt(
            body[:_NONCE_BYTES], body[_NONCE_BYTES:], _bind(sealed[:_HEAD], place)
        )
    except (InvalidTag, ValueError):
        message = "no frame of this key and place"
        raise ValueError(message) from None


def _bind(head: bytes, place: FramePlace) -> bytes:
    return b"%b %b %b" % (place.runtime_id.encode(), place.shard.tag.encode(), head)
