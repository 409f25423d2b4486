"""Ports for time and randomness: arguments of everything that decides."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from passerelle.core.ids import Shard


class Clock(Protocol):
    """Time as an argument."""

    def now_ms(self) -> int:
        """Milliseconds since the epoch, UTC."""
        ...


class Ids(Protocol):
    """Randomness as an argument."""

    def mint(self, prefix: str, shard: Shard) -> str:
        """A new id of this gateway."""
        ...

    def draw_letters(self) -> str:
        """Random letters for ids that are minted together (``core.ids.compose_stem``)."""
        ...

    def draw(self, bits: int) -> int:
        """A random number below 2**bits."""
        ...
