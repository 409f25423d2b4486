"""The limits of one peer: sends under way and their rate, and questions under way.

A send takes a slot while it lasts, and a unit of the rate, and is refused where there is none. A question waits
instead: whoever asks has time, and would only come back. So many are asked at once and no more: an instance that takes
up thousands of runs floods nobody.

A stream is a question until its first event. An agent that says nothing at first (0.3 does not have to) holds its place
for a moment only, or those who wait would never get theirs.
"""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Final

from passerelle.core.errors import StoreUnavailable
from passerelle.core.peer import SendSlot, Unreached

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable

    from passerelle.runtime.limits.limit import Limit


class SendLimit:
    """Counts sends; questions about tasks pass beside it, or a peer at its limit could not be asked any more."""

    def __init__(self, limit: Limit | None) -> None:
        self._limit = limit
        self.enter_now: Final[Callable[[], bool]] = limit.enter_now if limit else _let_in
        """``enter`` without waiting for anything; False does not say that waiting would be in vain."""
        self.leave: Final[Callable[[], None]] = limit.leave if limit else _let_out
        """Gives the slot back."""

    @property
    def has_slots(self) -> bool:
        """Whether only so many may be under way at once."""
        return self._limit is not None and self._limit.bounds.concurrency is not None

    @property
    def is_used_up(self) -> bool:
        """Whether ``enter`` would say so without asking anybody."""
        return self._limit is not None and self._limit.is_used_up

    def reserve_now(self) -> SendSlot | None:
        """``reserve`` without waiting for anything; None does not say that waiting would be in vain."""
        return self._make_place() if self.enter_now() else None

    async def reserve(self) -> SendSlot | None:
        """A place for a send that is about to begin; where there is none in the end it costs nothing of the rate.

        None: there is none now.
        """
        return None if await self.enter() is not None else self._make_place()

    def _make_place(self) -> SendSlot:
        limit = self._limit
        return SendSlot(_let_out if limit is None else partial(limit.back_out, limit.meter))

    async def enter(self) -> Unreached | None:
        """What is in the way, in which case nothing may be sent; None: the slot is held until ``leave``."""
        if self._limit is None:
            return None
        try:
            refused = await self._limit.enter()
        except StoreUnavailable as error:
            # Nobody knows how much the other instances have under way.
            return Unreached(error.message, error.retry_after_s, "limit")
        if refused is None:
            return None
        reason = f"its {refused.kind.replace('_', ' ')} limit of {refused.limit} is used up"
        return Unreached(reason, max(1, -(-refused.retry_after_ms // 1000)), "limit")


def _let_in() -> bool:
    return True


def _let_out() -> None:
    """Nothing was taken."""


UNLIMITED: Final = SendLimit(None)
"""For calls that take nothing of what the peer is given."""


AT_ONCE: Final = 64
"""Where the peer has no limit of its own."""
_OPENING_S: Final = 2.0


@dataclass(slots=True)
class QueuePlace:
    """A place among those who ask; given back once, whoever does it."""

    gate: asyncio.Semaphore
    _held: bool = True

    def leave(self) -> None:
        """Lets the next one ask."""
        if self._held:
            self._held = False
            self.gate.release()


@dataclass(slots=True)
class Questions:
    """Lets in ``at_once`` of them, in the order in which they come."""

    at_once: int
    opening_s: float = _OPENING_S
    _gate: asyncio.Semaphore = field(init=False)

    def __post_init__(self) -> None:
        self._gate = asyncio.Semaphore(self.at_once)

    @asynccontextmanager
    async def ask(self) -> AsyncGenerator[None]:
        """A place for the time of the block."""
        async with self._gate:
            yield

    @asynccontextmanager
    async def open(self) -> AsyncGenerator[QueuePlace]:
        """A place until the stream says something, or a moment has passed, or the block ends."""
        await self._gate.acquire()
        place = QueuePlace(self._gate)
        timer = asyncio.get_running_loop().call_later(self.opening_s, place.leave)
        try:
            yield place
        finally:
            timer.cancel()
            place.leave()
