"""Limits the concurrent replays and snapshots of an instance; further ones wait in a queue, for a bounded time.

A storm of reconnects is served in order. A client that would wait too long is refused with a retry time, before any
work on its request began. A slot belongs to work, not to a client: it is released while waiting for a slow socket.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Final, Self

from passerelle.core.errors import Limited

_RETRY_S: Final = 2


class Replays:
    """The slots of one instance, granted in the order of the requests.

    If the next waiter has just left, its slot goes to the one after it. The semaphore of asyncio would keep that slot
    idle until another one is released.
    """

    def __init__(self, most: int, wait_s: float) -> None:
        self._free = most
        self._wait_s = wait_s
        self._waiting: deque[asyncio.Future[None]] = deque()

    def make_slot(self) -> ReplaySlot:
        """A slot that is not acquired yet."""
        return ReplaySlot(self, self._wait_s)

    def take_free(self) -> bool:
        """Acquires a slot if one is free and no one waits; returns False otherwise."""
        if self._free <= 0 or self._waiting:
            return False
        self._free -= 1
        return True

    async def take(self) -> None:
        """Returns when a slot is acquired."""
        if self.take_free():
            return
        turn = asyncio.get_running_loop().create_future()
        self._waiting.append(turn)
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                self.give_back()
            raise

    def give_back(self) -> None:
        """Passes the slot to the longest waiting task."""
        while self._waiting:
            turn = self._waiting.popleft()
            if not turn.done():
                turn.set_result(None)
                return
        self._free += 1


class ReplaySlot:
    """One subscription's slot: ``async with`` acquires it, unless it is held already."""

    __slots__ = ("_slots", "_wait_s", "is_held")

    def __init__(self, slots: Replays, wait_s: float) -> None:
        self._slots = slots
        self._wait_s = wait_s
        self.is_held = False

    async def enter(self) -> None:
        """Acquires the slot.

        Raises:
            Limited: that would take too long.
        """
        if self.is_held or self._slots.take_free():
            self.is_held = True
            return
        try:
            async with asyncio.timeout(self._wait_s):
                await self._slots.take()
        except TimeoutError as error:
            raise Limited("concurrency", "too many replays at once", _RETRY_S) from error
        self.is_held = True

    async def enter_again(self) -> None:
        """Acquires the slot again, for work that has begun."""
        if not self.is_held:
            await self._slots.take()
            self.is_held = True

    def leave(self) -> None:
        """Releases the slot, if it is held."""
        if self.is_held:
            self.is_held = False
            self._slots.give_back()

    async def __aenter__(self) -> Self:
        await self.enter()
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        self.leave()
