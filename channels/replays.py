"""How many replays and snapshots an instance works on at once: the rest waits its turn, and not for long.

A storm of reconnects is served in order. Who would have to wait too long is sent away with a time to come back, before
anything of it was begun. A slot belongs to work, not to a client: who waits for a slow socket gives it back.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final, Self

from passerelle.core.errors import Limited

if TYPE_CHECKING:
    from types import TracebackType

_RETRY_S: Final = 2


class Replays:
    """The slots of one instance."""

    def __init__(self, most: int, wait_s: float) -> None:
        self._slots = asyncio.Semaphore(most)
        self._wait_s = wait_s

    def make_slot(self) -> Slot:
        """A slot that is not held yet."""
        return Slot(self._slots, self._wait_s)


class Slot:
    """One subscription's place: ``async with`` holds it, unless it is held already."""

    __slots__ = ("_slots", "_wait_s", "is_held")

    def __init__(self, slots: asyncio.Semaphore, wait_s: float) -> None:
        self._slots = slots
        self._wait_s = wait_s
        self.is_held = False

    async def enter(self) -> None:
        """Returns when it is held.

        Raises:
            Limited: that would take too long.
        """
        if self.is_held:
            return
        try:
            async with asyncio.timeout(self._wait_s):
                await self._slots.acquire()
        except TimeoutError as error:
            raise Limited("concurrency", "too many replays at once", _RETRY_S) from error
        self.is_held = True

    async def enter_again(self) -> None:
        """Returns when it is held, for work that has begun."""
        if not self.is_held:
            await self._slots.acquire()
            self.is_held = True

    def leave(self) -> None:
        """Gives it back, if it is held."""
        if self.is_held:
            self.is_held = False
            self._slots.release()

    async def __aenter__(self) -> Self:
        await self.enter()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.leave()
