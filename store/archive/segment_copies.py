"""Copies of a segment's frames: segments are merged, and the old ones are kept for a week.

A copy is recorded before it is written, so erasing a frame finds each copy that has it or will have it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, Self

from passerelle.core.frozen import frozen
from passerelle.store import keys
from passerelle.store.archive.segment import SegmentName
from passerelle.store.connection import pack
from passerelle.store.replies import as_bytes, as_hash

if TYPE_CHECKING:
    from collections.abc import Collection

    from passerelle.core.ids import Shard
    from passerelle.store.nodes import Nodes


class SegmentCopy(NamedTuple):
    """A segment, in the same shard, with the frames of another one shifted by ``shift`` bytes."""

    name: SegmentName
    shift: int

    @classmethod
    def read(cls, home: Shard, said: str) -> Self:
        """Reads the stored form."""
        digest, size, shift = said.split(" ")
        return cls(SegmentName(digest, int(size), home), int(shift))

    def __str__(self) -> str:
        """The stored form."""
        return f"{self.name.sha256} {self.name.bytes} {self.shift}"


def find_covered(
    copies: dict[str, list[SegmentCopy]],
    named: Collection[SegmentName],
    noted: Collection[SegmentName],
) -> set[SegmentName]:
    """Unnamed segments whose frames are all in a named one, directly or through segments that still exist."""
    covered = set[SegmentName]()
    while True:
        more = {
            one
            for one in noted
            if one not in covered
            and any(
                copy.name in named or copy.name in covered for copy in copies.get(one.sha256, ())
            )
        }
        if not more:
            return covered
        covered |= more


@frozen
class SegmentCopies:
    """Reads recorded copies; all raise StoreUnavailable."""

    nodes: Nodes

    async def find(self, segment: SegmentName) -> list[SegmentCopy]:
        """The existing or planned copies of its frames."""
        where = keys.segment_copies(segment.home)
        [said] = await self.nodes.query_all(segment.home, pack("HGET", where, segment.sha256))
        return _read(segment.home, as_bytes(said) or b"")

    async def list(self, shard: Shard) -> dict[str, list[SegmentCopy]]:
        """The copies of all segments of a shard, by SHA-256."""
        command = pack("HGETALL", keys.segment_copies(shard))
        [said] = await self.nodes.query_in_background(shard, command)
        return {sha256: _read(shard, value) for sha256, value in as_hash(said).items()}


def _read(home: Shard, said: bytes) -> list[SegmentCopy]:
    return [SegmentCopy.read(home, one) for one in said.decode().split(",") if one]
