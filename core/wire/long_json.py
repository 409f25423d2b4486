"""JSON that is too long for memory: bytes, interleaved with slices of the blob store."""

from __future__ import annotations

from typing import TypeAlias

from passerelle.core.frozen import frozen


@frozen
class Slice:
    """``size`` bytes of a blob from ``start`` on; ``digest`` is their SHA-256 in hex."""

    blob: str
    start: int
    size: int
    digest: str


class SlicedMembers(dict[str, object]):
    """A placeholder in a JSON value for list members that are in a slice: one or more, with their commas.

    JSON encoders refuse it, so it can never be sent instead of the members.
    """

    __slots__ = ("slice",)

    def __init__(self, piece: Slice) -> None:
        super().__init__(elsewhere=object())
        self.slice = piece


Piece: TypeAlias = bytes | Slice


@frozen
class LongJson:
    """One value as consecutive pieces."""

    pieces: tuple[Piece, ...]

    @property
    def size(self) -> int:
        """Total bytes."""
        return sum(one.size if isinstance(one, Slice) else len(one) for one in self.pieces)
