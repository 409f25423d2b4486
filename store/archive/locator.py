"""Where archived entities are: one row for each session and each of its entities.

A row is a field of a hash of the shard, named by the first bytes of the hash of the id, so that small hashes store it
in a few bytes; scripts compute the same name (``is_archived`` in ``lua/shared``). Two ids may have one name: the commit
never overwrites a row, and the frame lists its ids. A row keeps the number of its segment when segments are merged;
that number leads to the one that the shard names.
"""

from __future__ import annotations

import hashlib
import zlib
from typing import TYPE_CHECKING, Final, NamedTuple, Self

from passerelle.store import keys
from passerelle.store.replies import as_hash

if TYPE_CHECKING:
    from collections.abc import Collection

    from passerelle.core.ids import Shard
    from passerelle.store.connection import RespValue


BUCKETS: Final = 128
_FIELD: Final = 6
"""Bytes of a hash used as the name of a row, besides the shard and the seven bits that choose its bucket."""
_NUMBER: Final = 4
"""Bytes of a segment's number, which the commit assigns; the rest of a row is known before."""
_OFFSET: Final = 4
_LENGTH: Final = 3
_CHECK: Final = 3
_ROW: Final = _NUMBER + _OFFSET + _LENGTH + _CHECK
MOST_BYTES: Final = (1 << 8 * _LENGTH) - 1
"""Maximum length of a frame that a row can express."""


class Locator(NamedTuple):
    """The frame of a session: number of its segment in the shard, offset, length, and 24 bits of the CRC-32."""

    number: int
    offset: int
    length: int
    check: int

    @classmethod
    def of(cls, offset: int, stored: bytes) -> Self:
        """A frame at this offset of a segment that has no number yet."""
        return cls(0, offset, len(stored), _check(stored))

    def move(self, shift: int) -> Self:
        """The same frame in a segment where its offset is larger by ``shift``."""
        return self._replace(offset=self.offset + shift)

    def fits(self, stored: bytes) -> bool:
        """Whether these are the bytes of the frame, as far as the row can verify."""
        return len(stored) == self.length and _check(stored) == self.check

    @classmethod
    def read(cls, row: bytes) -> Self:
        """Reads a row.

        Raises:
            ValueError: it is no row.
        """
        if len(row) != _ROW:
            message = f"a locator row has {_ROW} bytes, not {len(row)}"
            raise ValueError(message)
        parts = list[int]()
        for size in (_NUMBER, _OFFSET, _LENGTH, _CHECK):
            parts.append(int.from_bytes(row[:size], "big"))
            row = row[size:]
        return cls(*parts)

    def pack(self, number: int) -> bytes:
        """The row of the frame in the segment with this number. Raises as ``pack_rest`` does."""
        return number.to_bytes(_NUMBER, "big") + self.pack_rest()

    def pack_rest(self) -> bytes:
        """The row without its number.

        Raises:
            OverflowError: length or offset of the frame exceeds what a row can express.
        """
        return (
            self.offset.to_bytes(_OFFSET, "big")
            + self.length.to_bytes(_LENGTH, "big")
            + self.check.to_bytes(_CHECK, "big")
        )


def place_row(shard: Shard, name: str) -> tuple[str, bytes]:
    """Key and field of the row of a session, thread, task or action."""
    digest = hashlib.sha1(name.encode(), usedforsecurity=False).digest()
    return keys.locators(shard, digest[_FIELD] % BUCKETS), digest[:_FIELD]


def _check(stored: bytes) -> int:
    return zlib.crc32(stored) & ((1 << 8 * _CHECK) - 1)


class MergedNumber(NamedTuple):
    """The number that a merged one leads to, and the shift of its frames in that segment, in bytes."""

    number: int
    shift: int

    @classmethod
    def read(cls, stored: bytes) -> Self:
        """Reads the stored form."""
        number, _, shift = stored.partition(b" ")
        return cls(int(number), int(shift))


def follow_numbers(named: Collection[int], merged: RespValue) -> dict[int, MergedNumber]:
    """Where each merged number leads among the ``named`` ones; ``merged`` are all merged numbers of a shard.

    A segment may be merged again, so one number may lead to another that leads on. Dead ends are left out.
    """
    every = {int(number): MergedNumber.read(said) for number, said in as_hash(merged).items()}
    # A later segment has a higher number; anything else is damage.
    steps = {number: step for number, step in every.items() if step.number > number}
    found = dict[int, MergedNumber]()
    for number in steps:
        at, shift = number, 0
        while at not in named and at in steps:
            at, shift = steps[at].number, shift + steps[at].shift
        if at != number and at in named:
            found[number] = MergedNumber(at, shift)
    return found
