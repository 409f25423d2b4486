"""The only place that asks for time and randomness; everything else is given them."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from passerelle.core.ids import REMOTE_CONTEXT, compose_context, encode_ms, spell

if TYPE_CHECKING:
    from collections.abc import Sequence

    from passerelle.core.ids import Shard

_LETTERS = 16
"""80 random bits of an id, five in each."""
_BLOCK_BYTES = 4096
"""One call of the operating system for a few hundred ids: a request mints about thirty."""


class SystemClock:
    """The clock of this machine; implements ``core.ports.chance.Clock``."""

    __slots__ = ()

    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000


@dataclass(frozen=True, slots=True)
class StoppedClock:
    """A clock that stands; implements ``core.ports.chance.Clock``."""

    at_ms: int

    def now_ms(self) -> int:
        return self.at_ms


class SystemIds:
    """Randomness of the operating system, read in blocks; implements ``core.ports.chance.Ids``."""

    __slots__ = ("_at", "_block", "_next", "_spelt")

    def __init__(self) -> None:
        self._block = b""
        self._at = 0
        self._spelt = ""
        self._next = 0

    def mint(self, prefix: str, shard: Shard) -> str:
        [made] = self.mint_all((prefix,), shard)
        return made

    def mint_all(self, prefixes: Sequence[str], shard: Shard) -> list[str]:
        now_ms = time.time_ns() // 1_000_000
        start, end = self._next, self._next + _LETTERS * len(prefixes)
        if end > len(self._spelt):
            size = max(_BLOCK_BYTES, end - start)
            self._spelt, start, end = spell(os.urandom(size)), 0, end - start
        self._next = end
        spelt, middle = self._spelt, f"_{shard.tag}{encode_ms(now_ms)}"
        return [
            compose_context(now_ms, self.draw(62))
            if prefix == REMOTE_CONTEXT
            else f"{prefix}{middle}{spelt[at : at + _LETTERS]}"
            for prefix, at in zip(prefixes, range(start, end, _LETTERS), strict=True)
        ]

    def draw(self, bits: int) -> int:
        size = (bits + 7) // 8
        if self._at + size > len(self._block):
            self._block, self._at = os.urandom(max(size, _BLOCK_BYTES)), 0
        drawn = int.from_bytes(self._block[self._at : self._at + size])
        self._at += size
        return drawn >> (8 * size - bits)
