"""The memory of a stream that is read: for one incomplete event or answer after another.

The size of an event is only known as it arrives. So memory for a small one is taken first, and a large one releases it
before it waits for more: no stream waits while it holds memory.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from passerelle.peers.whole_answer import FREE_BYTES, TIMES

if TYPE_CHECKING:
    from collections.abc import Callable

    from passerelle.runtime.memory.room import Hold, MemoryAccount, Reservation

_SMALL_BYTES: Final = 1_310_720
"""A chunk of 1 MiB with its envelope."""


class StreamRoom:
    """What one stream draws on a memory account; without one nothing is counted. ``leave`` ends the stream."""

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
        """Whether the stream was ended in favour of waiting ones."""

    async def make(self, size: int) -> None:
        """Returns once there is memory for the ``size`` bytes that arrived of an event, and for its rest."""
        while size > self._covered_bytes and self._account is not None:
            is_small = size <= _SMALL_BYTES and self._reservation is None
            self.close()
            self._covered_bytes = _SMALL_BYTES if is_small else self._limit_bytes
            self._granted.clear()
            self._reservation = self._account.reserve(
                TIMES * self._covered_bytes, self._granted.set, self._preempt
            )
            if not self._reservation.granted:
                await self._granted.wait()
            if not is_small:
                return

    def take(self, size: int) -> Hold | None:
        """Ends an event of ``size`` bytes and returns its share of the budget, if it has one. The next event starts."""
        reservation, self._reservation = self._reservation, None
        self._covered_bytes = FREE_BYTES
        return None if reservation is None else reservation.settle(TIMES * size)

    def close(self) -> None:
        """Releases what is drawn."""
        reservation, self._reservation = self._reservation, None
        if reservation is not None:
            reservation.release()

    def _preempt(self) -> None:
        self.gave_way = True
        self.close()
        self._leave()
