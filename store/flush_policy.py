"""When queued calls are flushed: Nagle-style batching as a pure state machine without clock, queue or socket.

A call is flushed at the end of its event-loop tick, with all others of that tick. A call with a linger budget waits
for others to share its flush, unless recent lingers were fruitless. A call that must not linger, such as a read or a
call that is batched already, is flushed at once.

``store.batcher`` executes the decisions: per call ``add``, and ``decide`` as soon as a connection is free.
"""

from __future__ import annotations

from enum import Enum, auto
from typing import Final

FLUSH_AT: Final = 6
"""A linger ends when this many calls are queued; unacknowledged ones are not counted."""
MIN_LINGER_S: Final = 0.001
"""Smaller budgets count as none: timers of the event loop are no finer."""
MAX_FRUITLESS_LINGERS: Final = 3
"""After this many lingers without a second call, no linger starts until a call with a budget shares a flush anyway."""


class Flush(Enum):
    """When the queue is flushed next."""

    NOW = auto()
    AT_TICK_END = auto()
    """Call ``on_tick_end`` at the end of this tick."""
    AT_DEADLINE = auto()
    """Call ``on_deadline`` at ``deadline_s``, in place of an earlier deadline."""
    PLANNED = auto()
    """An earlier decision holds."""


class FlushPolicy:
    """The counters and flags of one queue. Times are seconds of the caller's monotonic clock."""

    __slots__ = (
        "_flush_now",
        "_fruitless",
        "_lingered",
        "_queued",
        "_tick_end_is_due",
        "deadline_s",
    )

    def __init__(self) -> None:
        self.deadline_s: float | None = None
        """When the current linger ends."""
        self._queued = 0
        """Queued calls that count: all but the unacknowledged ones."""
        self._flush_now = False
        """A queued call waits only for a connection."""
        self._lingered = False
        """A queued call has a budget."""
        self._tick_end_is_due = False
        self._fruitless = 0

    def add(self, linger_s: float, *, no_linger: bool) -> None:
        """Counts a queued call that may wait ``linger_s`` for others."""
        self._queued += 1
        if no_linger:
            self._flush_now = True
        if linger_s >= MIN_LINGER_S:
            self._lingered = True

    def decide(self, linger_s: float, now_s: float) -> Flush:
        """Decides while a connection is free; ``linger_s`` is the budget of the last call, or 0."""
        if self._flush_now:
            return Flush.NOW
        if self._tick_end_is_due:
            return Flush.PLANNED
        if linger_s < MIN_LINGER_S or not self._is_linger_worthwhile():
            self._tick_end_is_due = True
            return Flush.AT_TICK_END
        deadline_s = now_s + linger_s
        if self.deadline_s is not None and self.deadline_s <= deadline_s:
            return Flush.PLANNED
        self.deadline_s = deadline_s
        return Flush.AT_DEADLINE

    def _is_linger_worthwhile(self) -> bool:
        return self._fruitless < MAX_FRUITLESS_LINGERS and self._queued < FLUSH_AT

    def on_tick_end(self) -> None:
        """The tick has ended: the queue is flushed now."""
        self._tick_end_is_due = False

    def on_deadline(self) -> bool:
        """The linger has ended; returns whether the queue is flushed now, and not at the end of this tick."""
        self.deadline_s = None
        if self._queued == 1:
            self._fruitless += 1
        return not self._tick_end_is_due

    def on_flush(self, counted: int, *, leaves: bool) -> None:
        """``counted`` counting calls were taken; ``leaves``: others did not fit in, and are as urgent."""
        self._queued -= counted
        if counted > 1 and self._lingered:
            self._fruitless = 0
        self._lingered = False
        self._flush_now = self._flush_now and leaves
        self.deadline_s = None
