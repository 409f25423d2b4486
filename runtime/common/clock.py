"""The only place that reads time and randomness; all other code receives them as parameters."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING, Final

from passerelle.core.frozen import frozen
from passerelle.core.ids import (
    CONTEXT_BITS,
    MINTED_LETTERS,
    REMOTE_CONTEXT,
    STEM_LETTERS,
    compose_context,
    compose_stem,
    encode_entropy,
)

if TYPE_CHECKING:
    from passerelle.core.ids import Shard

_BLOCK_LETTERS = 256 * MINTED_LETTERS
"""Letters for this many ids are read in one system call."""
_BLOCK_BITS = 1024
"""Bits read in one system call, enough for a few requests. Each draw shifts the whole number, so it stays small."""


class SystemClock:
    """The clock of this machine; implements ``core.ports.chance.Clock``."""

    __slots__ = ()

    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000


_read_ms: Final = SystemClock().now_ms


@frozen
class StoppedClock:
    """A clock with a fixed time; implements ``core.ports.chance.Clock``."""

    at_ms: int

    def now_ms(self) -> int:
        return self.at_ms


class SystemIds:
    """Randomness of the operating system, read in blocks; implements ``core.ports.chance.Ids``."""

    __slots__ = ("_bits", "_left", "_letters", "_spelt")

    def __init__(self) -> None:
        self._bits = 0
        self._left = 0
        self._letters = ""
        self._spelt = 0

    def mint(self, prefix: str, shard: Shard) -> str:
        if prefix == REMOTE_CONTEXT:
            return compose_context(_read_ms(), self.draw(CONTEXT_BITS))
        return prefix + compose_stem(shard, _read_ms(), self._take(MINTED_LETTERS))

    def draw_letters(self) -> str:
        return self._take(STEM_LETTERS)

    def _take(self, count: int) -> str:
        begin, end = self._spelt, self._spelt + count
        if end > len(self._letters):
            self._letters, begin, end = encode_entropy(os.urandom(_BLOCK_LETTERS)), 0, count
        self._spelt = end
        return self._letters[begin:end]

    def draw(self, bits: int) -> int:
        if bits > self._left:
            self._left = max(bits, _BLOCK_BITS)
            self._bits = int.from_bytes(os.urandom((self._left + 7) // 8))
        self._left -= bits
        drawn = self._bits & (1 << bits) - 1
        self._bits >>= bits
        return drawn
