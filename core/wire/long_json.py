"""JSON that is too long to be held: bytes, and between them slices of what stands in the blob store."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias


@dataclass(frozen=True, slots=True)
class Slice:
    """``size`` bytes of a blob from ``start`` on; ``digest`` is their SHA-256 in hex."""

    blob: str
    start: int
    size: int
    digest: str


class SlicedMembers(dict[str, object]):
    """Stands in a JSON value for the members of a list that are in a slice: one or more of them, with their commas.

    What writes JSON refuses it, so that it never goes out in the place of what it stands for.
    """

    __slots__ = ("slice",)

    def __init__(self, piece: Slice) -> None:
        super().__init__(elsewhere=object())
        self.slice = piece


Piece: TypeAlias = bytes | Slice


@dataclass(frozen=True, slots=True)
class LongJson:
    """One value: its pieces, one behind the other."""

    pieces: tuple[Piece, ...]

    @property
    def size(self) -> int:
        """Bytes of all of it."""
        return sum(one.size if isinstance(one, Slice) else len(one) for one in self.pieces)
