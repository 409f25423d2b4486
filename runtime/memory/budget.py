"""Counts bytes in flight by holder. Pure.

There is one total, and a holder gets at most a share of it: half. An amount larger than a share counts as one, so that
any allowed amount can be taken by a holder that holds nothing else.
"""

from __future__ import annotations

from enum import Enum
from typing import Final

SHARES: Final = 2


class MemoryShortage(Enum):
    """Why an amount cannot be taken."""

    SHARE = "share"
    """The holder has used its share."""
    TOTAL = "total"
    """All holders together have used the total."""


class Budget:
    """Counts what is held. Amounts are bytes; a holder is ``caller:<key>`` or ``agent:<origin>``."""

    __slots__ = ("_held", "held", "share", "total")

    def __init__(self, total_bytes: int) -> None:
        self.total: Final = total_bytes
        self.share: Final = total_bytes // SHARES
        self.held = 0
        self._held: dict[str, int] = {}

    def find_held(self, holder: str) -> int:
        """What one holder holds."""
        return self._held.get(holder, 0)

    def bound(self, amount: int) -> int:
        """The amount as counted, at most a share."""
        return min(amount, self.share)

    def take(self, holder: str, amount: int) -> MemoryShortage | None:
        """Takes an amount; on a shortage nothing is taken."""
        shortage = self.find_shortage(holder, amount)
        if shortage is None:
            self._held[holder] = self._held.get(holder, 0) + amount
            self.held += amount
        return shortage

    def find_shortage(self, holder: str, amount: int) -> MemoryShortage | None:
        """Why an amount could not be taken now; None if it could."""
        if self._held.get(holder, 0) + amount > self.share:
            return MemoryShortage.SHARE
        return MemoryShortage.TOTAL if self.held + amount > self.total else None

    def give_back(self, holder: str, amount: int) -> None:
        """Returns an amount taken by ``take``."""
        left = self._held.get(holder, 0) - amount
        if left > 0:
            self._held[holder] = left
        else:
            self._held.pop(holder, None)
        self.held -= amount
