"""Python's cycle collector in a process that lives long and makes thousands of short-lived objects for each request."""

from __future__ import annotations

import gc
from collections.abc import Generator
from contextlib import contextmanager
from typing import Final

YOUNG: Final = 10_000
"""Net allocations between two looks at the youngest objects; Python's own 700 are a look or two for each request."""
OLDER: Final = 4
"""Looks after which the next generation is looked at too: what has outlived them is walked over once more, and whoever
waits meanwhile waits for all of it at once. Hundreds of devices that come back leave 100,000 objects."""
OLDEST: Final = 100
"""Looks at that generation after which all is looked at."""


@contextmanager
def collect_nothing() -> Generator[None]:
    """For imports: all that a module makes stays, so each of the hundreds of looks meanwhile would find nothing."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


def calm_collector() -> None:
    """For the end of start-up: what was made by then stays for good, so it is not walked over again."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(YOUNG, OLDER, OLDEST)
