"""Whether something happens to many at once: devices that all come back."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field


@dataclass(slots=True)
class Surge:
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
