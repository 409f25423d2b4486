"""Detects a burst, such as devices reconnecting at once, and defers work that can wait a moment.

Deferred work runs in portions, so that new connections are served first.
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
    """More than ``most`` events within ``within_s`` are a burst. Times are seconds of one monotonic clock."""

    most: int
    within_s: float
    _times: deque[float] = field(default_factory=deque[float])

    def join(self, now_s: float) -> bool:
        """Counts one more event; returns whether it is part of a burst."""
        times = self._times
        times.append(now_s)
        if len(times) <= self.most:
            return False
        return now_s - times.popleft() < self.within_s


_PORTION: Final = 64
"""Pieces of work done in one iteration of the event loop."""


class DeferredQueue:
    """Runs pieces of work in order, starting ``wait_s`` after the first; pieces added meanwhile run with them."""

    __slots__ = ("_due", "_wait_s", "_work")

    def __init__(self, wait_s: float) -> None:
        self._wait_s = wait_s
        self._work: deque[Callable[[], None]] = deque()
        self._due: asyncio.Handle | None = None

    def add(self, piece: Callable[[], None]) -> None:
        """Adds a piece of work."""
        self._work.append(piece)
        if self._due is None:
            self._due = asyncio.get_running_loop().call_later(self._wait_s, self._do)

    def _do(self) -> None:
        try:
            for _ in range(min(_PORTION, len(self._work))):
                self._work.popleft()()
        finally:  # the loop reports a piece that raises, and the others still run
            self._due = asyncio.get_running_loop().call_soon(self._do) if self._work else None
