"""Lets devices in by parties, in the order in which they came.

Hundreds that come back at once would otherwise take every step together, and the first would have its events when the
last one has its welcome. A party asks the store once and reads its events while the next one is let in: the work is the
same, and both sides have some all the time. It is an order and no limit: where nobody has gone in for ``PATIENCE_S``,
all go in beside those who take so long.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Final

PARTY: Final = 64
"""As many as the store carries out as one call."""
PATIENCE_S: Final = 0.25


class Doorway:
    """``enter``, and ``leave`` once inside, whatever came of it. Used by one event loop."""

    __slots__ = ("_inside", "_patience", "_waiting")

    def __init__(self) -> None:
        self._inside = 0
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._patience: asyncio.TimerHandle | None = None

    async def enter(self) -> None:
        """Returns when it is one's turn: at once where less than a party is inside and nobody waits."""
        if not self._waiting and self._inside < PARTY:
            self._inside += 1
            return
        loop = asyncio.get_running_loop()
        turn: asyncio.Future[None] = loop.create_future()
        self._waiting.append(turn)
        if self._patience is None:
            self._patience = loop.call_later(PATIENCE_S, self._look, turn)
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                self.leave()
            raise

    def leave(self) -> None:
        """The last one of a party makes room for the next."""
        self._inside -= 1
        if self._inside == 0:
            self._let_in(PARTY)

    def _let_in(self, most: int) -> None:
        while self._waiting and most:
            turn = self._waiting.popleft()
            if not turn.done():
                turn.set_result(None)
                self._inside += 1
                most -= 1

    def _look(self, first: asyncio.Future[None]) -> None:
        """Lets all in if ``first`` still waits: nobody behind it has gone in either."""
        self._patience = None
        if not first.done():
            self._let_in(len(self._waiting))
        elif self._waiting:
            loop = asyncio.get_running_loop()
            self._patience = loop.call_later(PATIENCE_S, self._look, self._waiting[0])
