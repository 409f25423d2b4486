"""How long the appends of a turn may wait to share an exchange with the store, from how long its agent takes to answer.

Appends that share an exchange cost less, in this process and in the store. If an answer takes twenty milliseconds, two
more do not matter; if it takes two milliseconds, its appends do not wait.
"""

from __future__ import annotations

from typing import Final

_SHARE: Final = 4
"""An append waits at most this fraction of the mean answer time."""
_MOST_S: Final = 0.004
_LONGEST_S: Final = 0.024
"""Longer answer times count as this: the result is the same, and one outlier does not dominate the mean."""
_WEIGHT: Final = 0.125
"""Weight of the newest answer time in the mean."""


class BatchWindow:
    """The mean answer time for turns of one shape."""

    __slots__ = ("_mean_s", "within_s")

    def __init__(self) -> None:
        self._mean_s = 0.0
        self.within_s = 0.0
        """How long an append may wait, in seconds; 0 before the first answer."""

    def note(self, took_ms: int) -> None:
        """Records the time from a message to its answer."""
        took_s = min(max(took_ms / 1000, 0.0), _LONGEST_S)
        self._mean_s += (took_s - self._mean_s) * _WEIGHT
        self.within_s = min(self._mean_s / _SHARE, _MOST_S)
