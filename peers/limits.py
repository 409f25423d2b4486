"""The limits of one peer: concurrent sends and their rate, and concurrent queries.

A send takes a slot while it lasts, and a unit of the rate, and is rejected if there is none. A query waits instead: its
caller has time, and would only retry. At most ``at_once`` queries run, so that an instance that takes over thousands of
runs does not flood the peer.

A stream counts as a query until its first event. An agent that sends nothing at first (0.3 allows it) holds its slot
only briefly; otherwise waiting queries would never run.
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
    """Counts sends. Queries about tasks bypass it: a peer at its limit must still answer them."""

    def __init__(self, limit: Limit | None) -> None:
        self._limit = limit
        self.enter_now: Final[Callable[[], bool]] = limit.enter_now if limit else _admit
        """``enter`` without waiting; False does not mean that waiting is useless."""
        self.leave: Final[Callable[[], None]] = limit.leave if limit else _release_nothing
        """Releases the slot."""

    @property
    def has_slots(self) -> bool:
        """Whether the number of concurrent sends is limited."""
        return self._limit is not None and self._limit.bounds.concurrency is not None

    @property
    def is_used_up(self) -> bool:
        """Whether ``enter`` would reject a send without asking the store."""
        return self._limit is not None and self._limit.is_used_up

    def reserve_now(self) -> SendSlot | None:
        """``reserve`` without waiting; None does not mean that waiting is useless."""
        return self._make_place() if self.enter_now() else None

    async def reserve(self) -> SendSlot | None:
        """Reserves a slot for a send that is about to start; if it does not start, it costs no unit of the rate.

        None: there is no slot now.
        """
        return None if await self.enter() is not None else self._make_place()

    def _make_place(self) -> SendSlot:
        limit = self._limit
        return SendSlot(_release_nothing if limit is None else partial(limit.back_out, limit.meter))

    async def enter(self) -> Unreached | None:
        """Takes a slot, held until ``leave``, and returns None; or returns why nothing may be sent."""
        if self._limit is None:
            return None
        try:
            refused = await self._limit.enter()
        except StoreUnavailable as error:
            # It is unknown how many sends the other instances have in progress.
            return Unreached(error.message, error.retry_after_s, "limit")
        if refused is None:
            return None
        reason = f"its {refused.kind.replace('_', ' ')} limit of {refused.limit} is used up"
        return Unreached(reason, max(1, -(-refused.retry_after_ms // 1000)), "limit")


def _admit() -> bool:
    return True


def _release_nothing() -> None:
    """Releases nothing."""


UNLIMITED: Final = SendLimit(None)
"""For calls that the peer's limits do not cover."""


AT_ONCE: Final = 64
"""The default for a peer without a limit of its own."""
_OPENING_S: Final = 2.0


@dataclass(slots=True)
class QuerySlot:
    """A slot of a running query; released only once."""

    gate: asyncio.Semaphore
    _held: bool = True

    def leave(self) -> None:
        """Lets the next query run."""
        if self._held:
            self._held = False
            self.gate.release()


@dataclass(slots=True)
class QueryLimit:
    """Runs ``at_once`` queries, in the order in which they arrive."""

    at_once: int
    opening_s: float = _OPENING_S
    _gate: asyncio.Semaphore = field(init=False)

    def __post_init__(self) -> None:
        self._gate = asyncio.Semaphore(self.at_once)

    @asynccontextmanager
    async def ask(self) -> AsyncGenerator[None]:
        """Holds a slot during the block."""
        async with self._gate:
            yield

    @asynccontextmanager
    async def open(self) -> AsyncGenerator[QuerySlot]:
        """Holds a slot until the stream's first event, for ``opening_s``, or until the block ends."""
        await self._gate.acquire()
        place = QuerySlot(self._gate)
        timer = asyncio.get_running_loop().call_later(self.opening_s, place.leave)
        try:
            yield place
        finally:
            timer.cancel()
            place.leave()
