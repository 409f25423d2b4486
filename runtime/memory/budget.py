"""Bytes in flight, by who has the process hold them. Pure.

There is one total, and nobody has more than a share of it: half. What is larger than a share counts as one, so that
whatever is allowed at all can be had by somebody who holds nothing else.
"""

from __future__ import annotations

from enum import Enum
from typing import Final

SHARES: Final = 2


class MemoryShortage(Enum):
    """Why there is no room."""

    SHARE = "share"
    """The holder has all that one may have."""
    TOTAL = "total"
    """All of them together have everything."""


class Budget:
    """Counts what is held. Amounts are bytes; a holder is ``caller:<key>`` or ``agent:<origin>``."""

    __slots__ = ("_held", "held", "share", "total")

    def __init__(self, total_bytes: int) -> None:
        self.total: Final = total_bytes
        self.share: Final = total_bytes // SHARES
        self.held = 0
        self._held: dict[str, int] = {}

    def find_held(self, holder: str) -> int:
        """What one of them holds."""
        return self._held.get(holder, 0)

    def bound(self, amount: int) -> int:
        """What an amount counts."""
        return min(amount, self.share)

    def take(self, holder: str, amount: int) -> MemoryShortage | None:
        """Takes an amount; where there is a shortage nothing was taken."""
        shortage = self.find_shortage(holder, amount)
        if shortage is None:
            self._held[holder] = self._held.get(holder, 0) + amount
            self.held += amount
        return shortage

    def find_shortage(self, holder: str, amount: int) -> MemoryShortage | None:
        """Why an amount could not be taken now."""
        if self._held.get(holder, 0) + amount > self.share:
            return MemoryShortage.SHARE
        return MemoryShortage.TOTAL if self.held + amount > self.total else None

    def give_back(self, holder: str, amount: int) -> None:
        """What ``take`` took."""
        left = self._held.get(holder, 0) - amount
        if left > 0:
            self._held[holder] = left
        else:
            self._held.pop(holder, None)
        self.held -= amount
