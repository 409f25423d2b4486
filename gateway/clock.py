"""The only place that asks for time and randomness; everything else is given them."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING

from passerelle.core.ids import compose_id

if TYPE_CHECKING:
    from passerelle.core.ids import Shard

_ENTROPY_BITS = 80
_BLOCK_BYTES = 4096
"""One call of the operating system for a few hundred ids: a request mints about thirty."""


class SystemClock:
    """The clock of this machine; implements ``core.ports.Clock``."""

    __slots__ = ()

    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000


class SystemIds:
    """Randomness of the operating system, read in blocks; implements ``core.ports.Ids``."""

    __slots__ = ("_at", "_block")

    def __init__(self) -> None:
        self._block = b""
        self._at = 0

    def mint(self, prefix: str, shard: Shard) -> str:
        now_ms = time.time_ns() // 1_000_000
        return compose_id(prefix, shard, now_ms, self.draw(_ENTROPY_BITS))

    def draw(self, bits: int) -> int:
        size = (bits + 7) // 8
        if self._at + size > len(self._block):
            self._block, self._at = os.urandom(max(size, _BLOCK_BYTES)), 0
        drawn = int.from_bytes(self._block[self._at : self._at + size])
        self._at += size
        return drawn >> (8 * size - bits)
