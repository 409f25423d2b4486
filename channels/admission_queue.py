"""Admits reconnecting devices in batches, in the order of arrival.

Without batches, hundreds of reconnecting devices would pass every step together, and the first would get its events
only when the last one has its welcome. A batch reads from the store in one call, and reads its events while the next
batch is admitted. The queue orders and does not limit: if no device was admitted for ``MAX_WAIT_S``, all waiting ones
are admitted next to the slow batch.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Final

BATCH_SIZE: Final = 64
"""Batch size: as many as the store carries out in one call."""
MAX_WAIT_S: Final = 0.25


class AdmissionQueue:
    """Call ``enter``, and after it ``leave``, whatever the outcome. Used by one event loop."""

    __slots__ = ("_has_admitted", "_inside", "_timer", "_waiting")

    def __init__(self) -> None:
        self._inside = 0
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._timer: asyncio.TimerHandle | None = None
        self._has_admitted = False
        """Whether a batch was admitted since the timer started."""

    async def enter(self) -> None:
        """Returns when admitted: at once if less than a batch is inside and no other connection waits."""
        if not self._waiting and self._inside < BATCH_SIZE:
            self._inside += 1
            return
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(turn)
        if self._timer is None:
            self._start_timer()
        try:
            await turn
        except asyncio.CancelledError:
            if not turn.cancelled():
                self.leave()
            elif turn in self._waiting:
                self._waiting.remove(turn)
            raise

    def leave(self) -> None:
        """The last member of a batch admits the next batch."""
        self._inside -= 1
        if self._inside == 0:
            self._admit(BATCH_SIZE)

    def _admit(self, most: int) -> None:
        self._has_admitted = True
        while self._waiting and most:
            turn = self._waiting.popleft()
            if not turn.done():
                turn.set_result(None)
                self._inside += 1
                most -= 1

    def _start_timer(self) -> None:
        self._has_admitted = False
        self._timer = asyncio.get_running_loop().call_later(MAX_WAIT_S, self._look)

    def _look(self) -> None:
        self._timer = None
        if not self._has_admitted:
            self._admit(len(self._waiting))
        elif self._waiting:
            self._start_timer()
