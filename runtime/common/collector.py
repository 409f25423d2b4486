"""Tunes Python's garbage collector for a long-lived process with thousands of short-lived objects per request."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Generator
from contextlib import contextmanager
from typing import Final

from passerelle.runtime.common.deferred_queue import BurstDetector

YOUNG: Final = 10_000
"""Net allocations between two young collections; Python's default of 700 means one or two per request."""
OLDER: Final = 4
"""Young collections per collection of the next generation, which traverses all survivors and blocks every caller
meanwhile. Hundreds of devices that reconnect leave 100,000 objects."""
OLDEST: Final = 100
"""Collections of that generation per full collection."""
RESTS_S: Final = 0.5
"""Hundreds of reconnecting devices have their events after a third of a second."""
CROWD: Final = 32
CROWD_WITHIN_S: Final = 0.1
"""More sockets than ``CROWD`` within this time start a pause."""


@contextmanager
def collect_nothing() -> Generator[None]:
    """Disables collection during imports: module objects stay alive, so the collections would find nothing."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


def calm_collector() -> None:
    """Called at the end of start-up: freezes the existing objects, so that they are not traversed again."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(YOUNG, OLDER, OLDEST)


class GcPause:
    """Pauses collection while hundreds of connections arrive: their objects are collected after they are served.

    Used by one event loop. A pause ends by itself; the next allocation runs the collections that were due.
    """

    __slots__ = ("_end", "_surge")

    def __init__(self) -> None:
        self._surge = BurstDetector(CROWD, CROWD_WITHIN_S)
        self._end: asyncio.TimerHandle | None = None

    def join(self) -> None:
        """Counts one more connection. A burst starts a pause; during a pause it changes nothing."""
        loop = asyncio.get_running_loop()
        if self._surge.join(loop.time()) and gc.isenabled():
            gc.disable()
            self._end = loop.call_later(RESTS_S, self.end)

    def end(self) -> None:
        """Ends the pause, if there is one."""
        if self._end is not None:
            self._end.cancel()
            self._end = None
            gc.enable()
