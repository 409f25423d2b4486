"""The part of a shared limit that this instance holds: what to take of it at once, what to ask for, what to give back.

The store knows how much each instance holds; the instance counts its requests against its own block. Two kinds:

- *Slots* are held and come back: a call takes one and leaves it. A block grows when all of it is in use, by steps that
  double, so that a caller who stays on one instance soon has its whole limit here. Whoever is quieter for one round
  keeps what it used at most, and a little more.
- *Units* are used up: requests of a rate, calls and money of a period. They are drawn in steps that double while they
  are used up, from a twentieth of the limit to a quarter. What lay unused for one round is given back.

A block is lowered here before the store is told, and raised only after the store has said so. So the sum over all
instances can be below the limit for a moment, and never above it. No clock, no store: time and answers are arguments.
"""

from __future__ import annotations

from typing import Final

_FIRST_STEP: Final = 20
_LARGEST_STEP: Final = 4


class SlotBlock:
    """Concurrency slots of one limit. Without a limit they are only counted."""

    __slots__ = ("_limit", "_peak", "_step", "held", "used")

    def __init__(self, limit: int | None) -> None:
        self._limit = limit
        self._step = 1
        self._peak = 0
        self.held = 0
        self.used = 0

    def rebind(self, limit: int | None) -> None:
        """Another limit: what is above it is not used any more; what is under way goes on."""
        self._limit = limit
        self.held = 0 if limit is None else min(self.held, limit)

    @property
    def is_full(self) -> bool:
        """Whether there is none here."""
        return self._limit is not None and self.used >= self.held

    def take(self) -> bool:
        """Takes one, if there is one here."""
        used = self.used
        if self._limit is not None and used >= self.held:
            return False
        self.used = used + 1
        if used >= self._peak:
            self._peak = used + 1
        return True

    def leave(self) -> None:
        """One slot back."""
        self.used -= 1

    def grow(self, waiting: int) -> int:
        """How many to hold so that ``waiting`` more calls find one."""
        if self._limit is None or not waiting:
            return self.held
        return min(self._limit, max(self.held, self.used + max(waiting, self._step)))

    def shrink(self) -> int:
        """How many to hold after a round without a wait: the most that were in use in it, and a quarter more."""
        peak, self._peak = max(self._peak, self.used), self.used
        keep = 0 if peak == 0 else min(self.held, peak + max(1, peak // 4))
        if keep == 0:
            self._step = 1
        self.held = min(self.held, keep)
        return keep

    def settle(self, wanted: int, granted: int) -> None:
        """The store's answer."""
        if self._limit is not None and wanted > self.held and granted == wanted:
            self._step = min(self._step * 2, max(1, self._limit // _LARGEST_STEP))
        self.held = granted


class UnitBlock:
    """Units of one meter, drawn and not used yet. ``left`` is below 0 where something cost more than was thought."""

    __slots__ = ("_busy", "_limit", "_step", "left")

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._step = self._first
        self._busy = False
        self.left = 0

    @property
    def _first(self) -> int:
        return max(1, self._limit // _FIRST_STEP)

    @property
    def limit(self) -> int:
        """Of all instances."""
        return self._limit

    def rebind(self, limit: int) -> None:
        """Another limit; what was drawn of the old one is kept as far as the new one goes."""
        self._limit = limit
        self._step = min(self._step, self._first)
        self.left = min(self.left, limit)

    @property
    def is_low(self) -> bool:
        """Whether it is time to draw more, before somebody has to wait for it."""
        return self.left * 2 < self._step

    def take(self, units: int = 1) -> bool:
        """Uses units, if they are all here."""
        if self.left < units:
            return False
        self.left -= units
        self._busy = True
        return True

    def want(self, missing: int) -> int:
        """How many units to draw, with ``missing`` of them wanted at once."""
        return max(missing - min(self.left, 0), self._step)

    def settle(self, wanted: int, given: int) -> None:
        """The store's answer to a draw, or to units given back (below 0, and gone from here already)."""
        if given < 0:
            return
        self.left += given
        if given == wanted:
            self._step = min(self._step * 2, max(self._first, self._limit // _LARGEST_STEP))

    def shrink(self) -> int:
        """What to give back after a round: everything that lay unused in it. It is gone from here at once."""
        if self._busy or self.left <= 0:
            self._busy = False
            return 0
        idle, self.left = self.left, 0
        self._step = self._first
        return idle
