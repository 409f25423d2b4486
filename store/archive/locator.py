"""Where what has left the engine stands: one row for each session and each of its entities.

A row is a field of a hash of the shard, named by the hash of the id, so that small hashes keep it in a few bytes. The
scripts compute the same name (``locator_of`` in ``lua/shared``).
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Final, NamedTuple, Self

from passerelle.store import keys

if TYPE_CHECKING:
    from passerelle.core.ids import Shard

BUCKETS: Final = 128
_FIELD: Final = 16
_BUCKET: Final = slice(_FIELD, _FIELD + 2)
_NUMBER: Final = 4
"""Bytes of a segment's number, which the commit gives; the rest of a row is known before."""
_OFFSET: Final = 4
_LENGTH: Final = 3
_CHECK: Final = 4
_ROW: Final = _NUMBER + _OFFSET + _LENGTH + _CHECK
MOST_BYTES: Final = (1 << 8 * _LENGTH) - 1
"""Of a frame, as its length is written."""


class Locator(NamedTuple):
    """The frame of a session: in which segment of the shard, where, and the CRC-32 of its bytes."""

    number: int
    offset: int
    length: int
    check: int

    @classmethod
    def read(cls, row: bytes) -> Self:
        """Reads a row.

        Raises:
            ValueError: it is none.
        """
        if len(row) != _ROW:
            message = f"a locator row has {_ROW} bytes, not {len(row)}"
            raise ValueError(message)
        parts = list[int]()
        for size in (_NUMBER, _OFFSET, _LENGTH, _CHECK):
            parts.append(int.from_bytes(row[:size], "big"))
            row = row[size:]
        return cls(*parts)

    def pack_rest(self) -> bytes:
        """The row behind its number.

        Raises:
            OverflowError: the frame is longer, or stands further off, than a row can say.
        """
        return (
            self.offset.to_bytes(_OFFSET, "big")
            + self.length.to_bytes(_LENGTH, "big")
            + self.check.to_bytes(_CHECK, "big")
        )


def place_row(shard: Shard, name: str) -> tuple[str, str]:
    """Key and field of the row of a session, thread, task or action."""
    digest = hashlib.sha1(name.encode(), usedforsecurity=False).hexdigest()
    return keys.locators(shard, int(digest[_BUCKET], 16) % BUCKETS), digest[:_FIELD]
