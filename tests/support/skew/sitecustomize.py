"""Sets the clock of a process wrong: found on PYTHONPATH by every interpreter that starts with it."""

import os
import time

AHEAD_S = float(os.environ.get("SKEWED_CLOCK_S", "0"))


def skew() -> None:
    """Moves what the process takes for the time of its machine; what is monotonic stays as it is."""
    read = time.time_ns  # noqa: TID251  the clock that is set
    ahead_ns = int(AHEAD_S * 1_000_000_000)
    setattr(time, "time_ns", lambda: read() + ahead_ns)  # noqa: B010
    setattr(time, "time", lambda: (read() + ahead_ns) / 1_000_000_000)  # noqa: B010


skew()
