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


class AdmissionQueue:
    """``enter``, and ``leave`` once inside, whatever came of it. Used by one event loop."""

    __slots__ = ("_inside", "_moves", "_patience", "_waiting")

    def __init__(self) -> None:
        self._inside = 0
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._patience: asyncio.TimerHandle | None = None
        self._moves = False
        """Whether a party has gone in since patience began."""

    async def enter(self) -> None:
        """Returns when it is one's turn: at once where less than a party is inside and nobody waits."""
        if not self._waiting and self._inside < PARTY:
            self._inside += 1
            return
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(turn)
        if self._patience is None:
            self._begin_patience()
        try:
            await turn
        except asyncio.CancelledError:
            if not turn.cancelled():
                self.leave()
            elif turn in self._waiting:
                self._waiting.remove(turn)
            raise

    def leave(self) -> None:
        """The last one of a party makes room for the next."""
        self._inside -= 1
        if self._inside == 0:
            self._let_in(PARTY)

    def _let_in(self, most: int) -> None:
        self._moves = True
        while self._waiting and most:
            turn = self._waiting.popleft()
            if not turn.done():
                turn.set_result(None)
                self._inside += 1
                most -= 1

    def _begin_patience(self) -> None:
        self._moves = False
        self._patience = asyncio.get_running_loop().call_later(PATIENCE_S, self._look)

    def _look(self) -> None:
        self._patience = None
        if not self._moves:
            self._let_in(len(self._waiting))
        elif self._waiting:
            self._begin_patience()
