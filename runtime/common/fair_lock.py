"""A lock that is given in the order in which it was asked for, and costs next to nothing while nobody else wants it.

Every run has one, and most runs end before two want to write at once. ``asyncio.Lock`` is six calls for each of these.
"""

from __future__ import annotations

import asyncio
from collections import deque


class FairLock:
    """Held by one at a time, from ``acquire`` to ``release``."""

    __slots__ = ("_is_held", "_line")

    def __init__(self) -> None:
        self._is_held = False
        self._line: deque[asyncio.Future[None]] | None = None
        """Whoever waits; made for the first one."""

    async def acquire(self) -> None:
        """Returns when it is ours. Whoever is cancelled meanwhile does not have it."""
        if not self._is_held:
            self._is_held = True
            return
        if self._line is None:
            self._line = deque()
        place: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._line.append(place)
        try:
            await place
        except asyncio.CancelledError:
            if not place.cancelled():
                # It was handed over just before.
                self.release()
            raise

    def release(self) -> None:
        """Hands it to the next one in line, if there is one."""
        while self._line:
            place = self._line.popleft()
            if not place.done():
                place.set_result(None)
                return
        self._is_held = False
