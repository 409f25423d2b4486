"""Time and randomness, which are given to all that decides."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Sequence

    from passerelle.core.ids import Shard


class Clock(Protocol):
    """Time, given as an argument to all that decides."""

    def now_ms(self) -> int:
        """Milliseconds since the epoch, UTC."""
        ...


class Ids(Protocol):
    """Randomness, given as an argument to all that decides."""

    def mint(self, prefix: str, shard: Shard) -> str:
        """A new id of ours."""
        ...

    def mint_all(self, prefixes: Sequence[str], shard: Shard) -> list[str]:
        """A new id for each of these prefixes."""
        ...

    def draw(self, bits: int) -> int:
        """A random number below 2**bits."""
        ...
