"""How long an agent takes to answer, and how long what is stored of its turns may therefore wait for company.

Appends that travel together cost less, here and at the store. Of a turn whose answer takes twenty milliseconds nobody
notices two; one that takes two waits for nobody.
"""

from __future__ import annotations

from typing import Final

_SHARE: Final = 4
"""An append waits for so small a part of what an answer takes, at most."""
_MOST_S: Final = 0.004
_LONGEST_S: Final = 0.024
"""Whatever took longer counts as this: it makes no difference, and would be remembered for long."""
_WEIGHT: Final = 0.125
"""Of the last answer in the mean."""


class BatchWindow:
    """The mean of the answers to turns of one shape."""

    __slots__ = ("_mean_s", "within_s")

    def __init__(self) -> None:
        self._mean_s = 0.0
        self.within_s = 0.0
        """How long an append may wait, in seconds; nothing is known before the first answer."""

    def note(self, took_ms: int) -> None:
        """An answer has come so long after its question."""
        took_s = min(max(took_ms / 1000, 0.0), _LONGEST_S)
        self._mean_s += (took_s - self._mean_s) * _WEIGHT
        self.within_s = min(self._mean_s / _SHARE, _MOST_S)
