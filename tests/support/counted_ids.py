"""Predictable ids and randomness: each id has the next number, each draw returns the set value."""

from __future__ import annotations

from dataclasses import dataclass

from passerelle.core.ids import STEM_LETTERS, Shard, encode_base32
from tests.support.spelt_ids import compose_id

START_MS = 1_700_000_000_000


@dataclass(slots=True)
class CountedIds:
    """Implements ``core.ports.chance.Ids``."""

    drawn: int = 7
    made: int = 0

    def mint(self, prefix: str, shard: Shard) -> str:
        self.made += 1
        return compose_id(prefix, shard, START_MS, self.made)

    def draw_letters(self) -> str:
        self.made += 1
        return encode_base32(self.made, STEM_LETTERS)

    def draw(self, bits: int) -> int:
        return self.drawn % (1 << bits)
