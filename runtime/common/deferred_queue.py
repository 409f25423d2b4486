"""Detects a surge, such as devices that all come back, and defers work that can wait a moment in it.

What was deferred is done in portions: whoever comes in is served first.
"""

from __future__ import annotations

import asyncio
from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable


@dataclass(slots=True)
class BurstDetector:
    """More than ``most`` within ``within_s`` are a surge. Times are seconds of one monotonic clock."""

    most: int
    within_s: float
    _times: deque[float] = field(default_factory=deque[float])

    def join(self, now_s: float) -> bool:
        """One more; whether it is part of a surge."""
        times = self._times
        times.append(now_s)
        if len(times) <= self.most:
            return False
        return now_s - times.popleft() < self.within_s


_PORTION: Final = 64
"""Pieces of work that are done in one turn of the loop."""


class DeferredQueue:
    """Begins them in order, ``wait_s`` after the first; what is added meanwhile goes with them."""

    __slots__ = ("_due", "_wait_s", "_work")

    def __init__(self, wait_s: float) -> None:
        self._wait_s = wait_s
        self._work: deque[Callable[[], None]] = deque()
        self._due: asyncio.Handle | None = None

    def add(self, piece: Callable[[], None]) -> None:
        """One more."""
        self._work.append(piece)
        if self._due is None:
            self._due = asyncio.get_running_loop().call_later(self._wait_s, self._do)

    def _do(self) -> None:
        try:
            for _ in range(min(_PORTION, len(self._work))):
                self._work.popleft()()
        finally:  # one that raises is reported by the loop, and the others go on
            self._due = asyncio.get_running_loop().call_soon(self._do) if self._work else None
