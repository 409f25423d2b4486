"""The only place that asks for time and randomness; everything else is given them."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING

from passerelle.core.ids import REMOTE_CONTEXT, compose_context, encode_ms, spell

if TYPE_CHECKING:
    from collections.abc import Sequence

    from passerelle.core.ids import Shard

_LETTERS = 16
"""80 random bits of an id, five in each."""
_BLOCK_IDS = 256
"""One call of the operating system for as many ids: a request mints about thirty."""
_BLOCK_BITS = 1024
"""One call of it for what is drawn for a few requests. It is shifted as a whole for each, so it is no larger."""


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

    __slots__ = ("_bits", "_left", "_letters")

    def __init__(self) -> None:
        self._letters = chain.from_iterable(iter(_spell_block, None))
        self._bits = 0
        self._left = 0

    def mint(self, prefix: str, shard: Shard) -> str:
        [made] = self.mint_all((prefix,), shard)
        return made

    def mint_all(self, prefixes: Sequence[str], shard: Shard) -> list[str]:
        now_ms = time.time_ns() // 1_000_000
        middle = f"_{shard.tag}{encode_ms(now_ms)}"
        return [
            compose_context(now_ms, self.draw(62))
            if prefix == REMOTE_CONTEXT
            else f"{prefix}{middle}{letters}"
            # There are always more letters; those of a context are left out.
            for prefix, letters in zip(prefixes, self._letters, strict=False)
        ]

    def draw(self, bits: int) -> int:
        if bits > self._left:
            self._left = max(bits, _BLOCK_BITS)
            self._bits = int.from_bytes(os.urandom((self._left + 7) // 8))
        self._left -= bits
        drawn = self._bits & (1 << bits) - 1
        self._bits >>= bits
        return drawn


def _spell_block() -> list[str]:
    spelt = spell(os.urandom(_LETTERS * _BLOCK_IDS))
    return [spelt[at : at + _LETTERS] for at in range(0, _LETTERS * _BLOCK_IDS, _LETTERS)]
