"""Forgotten frames of a segment: what replaces them, and how it is written.

Form (1 byte) · tombstone (9) · SHA-256 of the frame (32) · zeros. All else keeps its place, and the object its name: no
row changes, so a row that a failover restores is still valid. It leads to the rest, or to the replacement.
"""

from __future__ import annotations

import hashlib
import zlib
from typing import TYPE_CHECKING, Any, Final, NamedTuple, cast

import orjson

from passerelle.store.archive.segment import HEADER, split_segment

if TYPE_CHECKING:
    from collections.abc import Mapping

_FORM: Final = b"\x02"
"""A sealed frame begins with 1. A hole left by a file system begins with 0, and is damage."""
_TOMBSTONE_BYTES: Final = 9
_DIGEST_BYTES: Final = 32
_HEAD: Final = len(_FORM) + _TOMBSTONE_BYTES + _DIGEST_BYTES


class ErasedFrame(NamedTuple):
    """The replacement of a frame: the tombstone in 18 hexadecimal digits, and the SHA-256 of the sealed bytes."""

    tombstone: str
    sha256: str


def read_erased(stored: bytes) -> ErasedFrame | None:
    """The replacement of a frame; None if it was not erased."""
    head, rest = stored[:_HEAD], stored[_HEAD:]
    if len(head) < _HEAD or not head.startswith(_FORM) or rest.strip(b"\0"):
        return None
    body = head[len(_FORM) :]
    return ErasedFrame(body[:_TOMBSTONE_BYTES].hex(), body[_TOMBSTONE_BYTES:].hex())


def erase_frames(content: bytes, tombstones: Mapping[int, str]) -> bytes:
    """A segment with the frames at these offsets erased, each with its tombstone; its length stays the same.

    A frame that is already erased stays as it is, so a repeated call changes nothing. The footer loses their ids and
    the names of their keys.

    Raises:
        ValueError: it is no segment, has no frame there, or a remaining frame is damaged: it must not be rewritten.
    """
    body, footer = split_segment(content)
    footer_at = len(HEADER) + len(body)
    said = cast("dict[str, Any]", orjson.loads(footer))
    erased, left = bytearray(content), dict(tombstones)
    for place, frame in enumerate(said["frames"]):
        offset, length = int(frame["offset"]), int(frame["length"])
        stored = content[offset : offset + length]
        tombstone = left.pop(offset, None)
        if "forgotten" in frame:
            _require(read_erased(stored) is not None, f"an erased frame at {offset}")
            continue
        _require(zlib.crc32(stored) == frame["crc32"], f"the frame at {offset}")
        if tombstone is not None:
            erased[offset : offset + length] = _write_erased(stored, tombstone)
            said["frames"][place] = {"forgotten": tombstone, "offset": offset, "length": length}
    _require(not left, f"a frame at {min(left, default=0)}")
    written = orjson.dumps(said)
    _require(len(written) <= len(footer), "a footer so short")
    # Trailing spaces are valid JSON, and the size of an object is part of its name.
    erased[footer_at : footer_at + len(footer)] = written.ljust(len(footer))
    return bytes(erased)


def _write_erased(stored: bytes, tombstone: str) -> bytes:
    name = bytes.fromhex(tombstone)
    _require(len(name) == _TOMBSTONE_BYTES, f"tombstone {tombstone}")
    left = _FORM + name + hashlib.sha256(stored).digest()
    _require(len(stored) >= len(left), "a frame so short")
    return left.ljust(len(stored), b"\0")


def _require(is_so: bool, what: str) -> None:  # noqa: FBT001  the one thing that it is about
    if not is_so:
        message = f"no segment: {what} is damaged or not there"
        raise ValueError(message)
