"""Shifts the clock of a process: every interpreter with this folder on PYTHONPATH loads it."""

import os
import time

AHEAD_S = float(os.environ.get("SKEWED_CLOCK_S", "0"))


def skew() -> None:
    """Shifts the wall clock of the process; monotonic clocks stay unchanged."""
    read = time.time_ns  # noqa: TID251  the clock that is set
    ahead_ns = int(AHEAD_S * 1_000_000_000)
    setattr(time, "time_ns", lambda: read() + ahead_ns)  # noqa: B010
    setattr(time, "time", lambda: (read() + ahead_ns) / 1_000_000_000)  # noqa: B010


skew()
