"""Failures of the place for content outside of the engine: a full or lost folder, a bucket that does not answer."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from passerelle.core.errors import StoreUnavailable

SHOWN_S: Final = 60.0
"""How long a failure is shown after it has happened. A nearly full folder takes small content and refuses large."""


@dataclass(slots=True)
class ContentFailures:
    """The failures of one place. ``tell`` is called with the reason of each."""

    tell: Callable[[str], None] = lambda _reason: None
    clock: Callable[[], float] = time.monotonic
    _last: str = ""
    _last_s: float = -math.inf

    def note(self, reason: str) -> StoreUnavailable:
        """Notes a failure, and returns the error for it: nothing was written."""
        self._last, self._last_s = reason, self.clock()
        self.tell(reason)
        return StoreUnavailable(reason, "no")

    def describe(self) -> str | None:
        """The reason of the last failure for ``/readyz``; None: there was none for a minute."""
        return self._last if self.clock() - self._last_s < SHOWN_S else None
