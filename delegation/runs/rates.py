"""How much a run, and a caller's runs, bring in a time. Pure: the time goes in, and what is to be waited comes out.

A run may bring a second's worth at once. Beyond that its stream is read no faster than its rate, so the agent feels it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

_BURST_S: Final = 1.0
QUIET_EVENTS: Final = 64
QUIET_BYTES: Final = 1024 * 1024
"""What the runs of a caller may bring within a second before each of them waits for its turn."""
_MOST_CALLERS: Final = 1024
"""Callers whose sums are kept; those that are loud are kept beyond it."""


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


@dataclass(slots=True)
class Sums:
    """What the runs of each caller bring together."""

    _sums: dict[str, Rate] = field(default_factory=dict[str, Rate])

    def __len__(self) -> int:
        """How many are kept."""
        return len(self._sums)

    def count(self, caller: str, events: int, size: int, now_s: float) -> None:
        """So much has come for a caller by now."""
        rate = self._sums.get(caller)
        if rate is None:
            if len(self._sums) >= _MOST_CALLERS:
                self._forget(now_s)
            rate = self._sums[caller] = Rate(QUIET_EVENTS, QUIET_BYTES)
        rate.count(events, size, now_s)

    def are_loud(self, caller: str, now_s: float) -> bool:
        """Whether it is so much that others notice it."""
        rate = self._sums.get(caller)
        return rate is not None and rate.find_wait_s(now_s) > 0

    def _forget(self, now_s: float) -> None:
        """Those that are not loud: a new sum says the same of them, or a little less."""
        self._sums = {
            caller: rate for caller, rate in self._sums.items() if rate.find_wait_s(now_s) > 0
        }
