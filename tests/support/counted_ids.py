"""Ids and randomness that a test can foresee: each id has the next number, each draw is what was set."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from passerelle.core.ids import Shard, compose_id

START_MS = 1_700_000_000_000


@dataclass(slots=True)
class CountedIds:
    """Implements ``core.ports.chance.Ids``."""

    drawn: int = 7
    made: int = 0

    def mint(self, prefix: str, shard: Shard) -> str:
        self.made += 1
        return compose_id(prefix, shard, START_MS, self.made)

    def mint_all(self, prefixes: Sequence[str], shard: Shard) -> list[str]:
        return [self.mint(prefix, shard) for prefix in prefixes]

    def draw(self, bits: int) -> int:
        return self.drawn % (1 << bits)
