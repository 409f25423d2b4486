"""How much a run brings in a time. Pure: the time goes in, and what is to be waited comes out.

A run may bring a second's worth at once. Beyond that its stream is read no faster than its rate, so the agent feels it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

_BURST_S: Final = 1.0
QUIET_EVENTS: Final = 64
QUIET_BYTES: Final = 1024 * 1024
"""What a run may bring within a second before it waits for its turn among others that do."""


@dataclass(slots=True)
class Rate:
    """Events and bytes of one run. Each moves on a time at which all that came is paid for."""

    events_per_s: float
    bytes_per_s: float
    _events_at_s: float = 0.0
    _bytes_at_s: float = 0.0

    def count(self, events: int, size: int, now_s: float) -> None:
        """So much has come by now."""
        begin_s = now_s - _BURST_S
        self._events_at_s = max(self._events_at_s, begin_s) + events / self.events_per_s
        self._bytes_at_s = max(self._bytes_at_s, begin_s) + size / self.bytes_per_s

    def find_wait_s(self, now_s: float) -> float:
        """Seconds until more may come; none or less where it may now."""
        return max(self._events_at_s, self._bytes_at_s) - now_s


def make_quiet() -> Rate:
    """The rate up to which a run disturbs nobody."""
    return Rate(QUIET_EVENTS, QUIET_BYTES)


@dataclass(slots=True)
class Pace:
    """What a run brings: how far it is over what it may, and whether others notice it."""

    allowed: Rate
    quiet: Rate = field(default_factory=make_quiet)

    def count(self, size: int, now_s: float) -> float:
        """An event of so many bytes; seconds until the next one may be read, none or less where it may be at once."""
        self.quiet.count(1, size, now_s)
        self.allowed.count(1, size, now_s)
        return self.allowed.find_wait_s(now_s)

    def is_loud(self, now_s: float) -> bool:
        """Whether it brings so much that it takes turns with others that do."""
        return self.quiet.find_wait_s(now_s) > 0
