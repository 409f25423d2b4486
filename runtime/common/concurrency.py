"""A fair lock, and several calls at once of which none is left behind when one fails."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Awaitable, Iterable


class FairLock:
    """Held by one at a time, from ``acquire`` to ``release``, in the order in which it was asked for.

    It costs next to nothing while nobody else wants it: every run has one, and most runs end before two want to write
    at once. ``asyncio.Lock`` is six calls for each of these.
    """

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


T = TypeVar("T")


async def join_all(calls: Iterable[Awaitable[T]]) -> list[T]:
    """The results in order, once every call has ended; raises the first failure then."""
    results = await asyncio.gather(*calls, return_exceptions=True)
    done: list[T] = []
    for result in results:
        if isinstance(result, BaseException):
            raise result
        done.append(result)
    return done
