"""Python's cycle collector in a process that lives long and makes thousands of short-lived objects for each request."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Generator
from contextlib import contextmanager
from typing import Final

from passerelle.runtime.common.deferred_queue import BurstDetector

YOUNG: Final = 10_000
"""Net allocations between two looks at the youngest objects; Python's own 700 are a look or two for each request."""
OLDER: Final = 4
"""Looks after which the next generation is looked at too: what has outlived them is walked over once more, and whoever
waits meanwhile waits for all of it at once. Hundreds of devices that come back leave 100,000 objects."""
OLDEST: Final = 100
"""Looks at that generation after which all is looked at."""
RESTS_S: Final = 0.5
"""Hundreds of devices have their events after a third of a second."""
CROWD: Final = 32
CROWD_WITHIN_S: Final = 0.1
"""More sockets than ``CROWD`` within this time begin a rest."""


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


class GcPause:
    """A short time without looks while hundreds come in: what is made then is looked at when they are served.

    Used by one event loop. A rest ends by itself, and the next allocation makes up for all looks that were due.
    """

    __slots__ = ("_end", "_surge")

    def __init__(self) -> None:
        self._surge = BurstDetector(CROWD, CROWD_WITHIN_S)
        self._end: asyncio.TimerHandle | None = None

    def join(self) -> None:
        """One more has come. Of many at once some begin a rest; while it lasts they change nothing."""
        loop = asyncio.get_running_loop()
        if self._surge.join(loop.time()) and gc.isenabled():
            gc.disable()
            self._end = loop.call_later(RESTS_S, self.end)

    def end(self) -> None:
        """Ends it now, if it was begun."""
        if self._end is not None:
            self._end.cancel()
            self._end = None
            gc.enable()
