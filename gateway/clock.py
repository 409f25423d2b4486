"""The only place that asks for time and randomness; everything else is given them."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from passerelle.core.ids import REMOTE_CONTEXT, compose_context, encode_ms, spell

if TYPE_CHECKING:
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
        if prefix == REMOTE_CONTEXT:
            return compose_context(time.time_ns() // 1_000_000, self.draw(62))
        start, end = self._next, self._next + _LETTERS
        if end > len(self._spelt):
            self._spelt, start, end = spell(os.urandom(_BLOCK_BYTES)), 0, _LETTERS
        self._next = end
        now = encode_ms(time.time_ns() // 1_000_000)
        return f"{prefix}_{shard.tag}{now}{self._spelt[start:end]}"

    def draw(self, bits: int) -> int:
        size = (bits + 7) // 8
        if self._at + size > len(self._block):
            self._block, self._at = os.urandom(max(size, _BLOCK_BYTES)), 0
        drawn = int.from_bytes(self._block[self._at : self._at + size])
        self._at += size
        return drawn >> (8 * size - bits)
