"""The room of a stream that is read: for what is not whole yet, one event or answer after another.

How large an event becomes shows as it comes. So room for a small one is taken first, and a large one gives that back
before it waits for more: nobody waits while it holds a part.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from passerelle.peers.whole_answer import FREE_BYTES, TIMES

if TYPE_CHECKING:
    from collections.abc import Callable

    from passerelle.runtime.memory.room import Hold, MemoryAccount, Reservation

_SMALL_BYTES: Final = 1_310_720
"""A chunk of 1 MiB with what stands around it."""


class StreamRoom:
    """What one stream draws on an account; with none nothing is counted. ``leave`` ends the stream."""

    def __init__(
        self, account: MemoryAccount | None, limit_bytes: int, leave: Callable[[], None]
    ) -> None:
        self._account = account
        self._limit_bytes = limit_bytes
        self._leave = leave
        self._reservation: Reservation | None = None
        self._covered_bytes = FREE_BYTES
        self._granted = asyncio.Event()
        self.gave_way = False
        """Whether the stream was ended for those who waited."""

    async def make(self, size: int) -> None:
        """Returns when there is room for what has come of an event, so many bytes of it, and for its rest."""
        while size > self._covered_bytes and self._account is not None:
            is_small = size <= _SMALL_BYTES and self._reservation is None
            self.close()
            self._covered_bytes = _SMALL_BYTES if is_small else self._limit_bytes
            self._granted.clear()
            self._reservation = self._account.reserve(
                TIMES * self._covered_bytes, self._granted.set, self._give_way
            )
            if not self._reservation.granted:
                await self._granted.wait()
            if not is_small:
                return

    def take(self, size: int) -> Hold | None:
        """An event is whole and has so many bytes: its place in the budget, where it has one. The next one begins."""
        reservation, self._reservation = self._reservation, None
        self._covered_bytes = FREE_BYTES
        return None if reservation is None else reservation.settle(TIMES * size)

    def close(self) -> None:
        """Gives back what is drawn."""
        reservation, self._reservation = self._reservation, None
        if reservation is not None:
            reservation.release()

    def _give_way(self) -> None:
        self.gave_way = True
        self.close()
        self._leave()
