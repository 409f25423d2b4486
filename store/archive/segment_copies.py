"""Where the frames of a segment stand once more: segments were merged, and the old ones stay for a week.

It is said before the copy is written, so whoever erases a frame finds each copy that has it or will have it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, Self

from passerelle.store import keys
from passerelle.store.archive.segment import SegmentName
from passerelle.store.connection import pack
from passerelle.store.replies import as_bytes, as_hash

if TYPE_CHECKING:
    from collections.abc import Collection

    from passerelle.core.ids import Shard
    from passerelle.store.nodes import Nodes


class SegmentCopy(NamedTuple):
    """A segment, in the same shard, in which each frame of another one stands so much further on, in bytes."""

    name: SegmentName
    shift: int

    @classmethod
    def read(cls, home: Shard, said: str) -> Self:
        """Reads what the store has of one."""
        digest, size, shift = said.split(" ")
        return cls(SegmentName(digest, int(size), home), int(shift))

    def __str__(self) -> str:
        """How the store has it."""
        return f"{self.name.sha256} {self.name.bytes} {self.shift}"


def find_covered(
    copies: dict[str, list[SegmentCopy]],
    named: Collection[SegmentName],
    noted: Collection[SegmentName],
) -> set[SegmentName]:
    """Those that nothing names and whose frames all stand in one that is named, as long as each on the way is there."""
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


@dataclass(frozen=True, slots=True)
class SegmentCopies:
    """What the store says of copies; all raise StoreUnavailable."""

    nodes: Nodes

    async def find(self, segment: SegmentName) -> list[SegmentCopy]:
        """Where its frames stand too, or will."""
        where = keys.segment_copies(segment.home)
        [said] = await self.nodes.query_all(segment.home, pack("HGET", where, segment.sha256))
        return _read(segment.home, as_bytes(said) or b"")

    async def list(self, shard: Shard) -> dict[str, list[SegmentCopy]]:
        """The same of all that stand in a shard, by SHA-256."""
        command = pack("HGETALL", keys.segment_copies(shard))
        [said] = await self.nodes.query_in_background(shard, command)
        return {sha256: _read(shard, value) for sha256, value in as_hash(said).items()}


def _read(home: Shard, said: bytes) -> list[SegmentCopy]:
    return [SegmentCopy.read(home, one) for one in said.decode().split(",") if one]
