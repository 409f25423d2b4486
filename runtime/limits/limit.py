"""One shared limit as this instance sees it, and the blocks of it that this instance holds.

Requests enter and leave without a round trip. The store is called only if the local block is empty, one call at a time;
all requests that wait for the same limit share this call. A refusal by the store is cached for a moment, so that a
flood of refused requests does not reach the store.

The store knows how much each instance holds; the instance counts its requests against its own block. Two kinds:

- *Slots* are held and returned: a call takes one and leaves it. A block grows when all of it is in use, in doubling
  steps, so that a caller that stays on one instance soon has its whole limit there. After one quieter round the block
  shrinks to its peak use and a little more.
- *Units* are consumed: requests of a rate, calls and money of a period. They are drawn ahead, in steps that double
  while they are used up, from a twentieth of the limit to a quarter. Units unused for one round are returned.

A block is lowered here before the store is called, and raised only after the store has granted it. So the sum over all
instances can be below the limit for a moment, but never above it. Blocks have no clock and no store: time and replies
are arguments.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from passerelle.core.errors import CallerLimitKind, StoreUnavailable
from passerelle.core.frozen import frozen
from passerelle.core.ports.limits import Bucket

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from passerelle.core.ports.chance import Clock
    from passerelle.core.ports.limits import LimitStore

_FIRST_STEP: Final = 20
_LARGEST_STEP: Final = 4


@frozen
class Rate:
    """``units`` per ``per_ms``; unused units accumulate up to ``units``, which is also the largest burst."""

    units: int
    per_ms: int


@frozen
class Bounds:
    """Cluster-wide limits; None means unlimited."""

    concurrency: int | None = None
    rate: Rate | None = None


@frozen
class OverLimit:
    """Nothing was taken. ``limit`` is the exceeded bound; retry after ``retry_after_ms``."""

    kind: CallerLimitKind
    limit: int
    retry_after_ms: int


class SlotBlock:
    """Concurrency slots of one limit. Without a limit they are only counted."""

    __slots__ = ("_limit", "_peak", "_step", "held", "used")

    def __init__(self, limit: int | None) -> None:
        self._limit = limit
        self._step = 1
        self._peak = 0
        self.held = 0
        self.used = 0

    def rebind(self, limit: int | None) -> None:
        """Replaces the limit: slots above it are not used any more; running calls continue."""
        self._limit = limit
        self.held = 0 if limit is None else min(self.held, limit)

    @property
    def is_full(self) -> bool:
        """Whether no local slot is free."""
        return self._limit is not None and self.used >= self.held

    def take(self) -> bool:
        """Takes a local slot; returns whether one was free."""
        used = self.used
        if self._limit is not None and used >= self.held:
            return False
        self.used = used + 1
        if used >= self._peak:
            self._peak = used + 1
        return True

    def leave(self) -> None:
        """Returns one slot."""
        self.used -= 1

    def grow(self, waiting: int) -> int:
        """How many slots to hold so that ``waiting`` more calls get one."""
        if self._limit is None or not waiting:
            return self.held
        return min(self._limit, max(self.held, self.used + max(waiting, self._step)))

    def shrink(self) -> int:
        """How many slots to hold after a round without waiting calls: the peak use in it, and a quarter more."""
        peak, self._peak = max(self._peak, self.used), self.used
        keep = 0 if peak == 0 else min(self.held, peak + max(1, peak // 4))
        if keep == 0:
            self._step = 1
        self.held = min(self.held, keep)
        return keep

    def settle(self, wanted: int, granted: int) -> None:
        """Applies the store's reply."""
        if self._limit is not None and wanted > self.held and granted == wanted:
            self._step = min(self._step * 2, max(1, self._limit // _LARGEST_STEP))
        self.held = granted


class UnitBlock:
    """Units of one meter, drawn and not used yet. ``left`` is negative if something cost more than estimated."""

    __slots__ = ("_busy", "_limit", "_step", "left")

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._step = self._first
        self._busy = False
        self.left = 0

    @property
    def _first(self) -> int:
        return max(1, self._limit // _FIRST_STEP)

    @property
    def limit(self) -> int:
        """The limit over all instances."""
        return self._limit

    def rebind(self, limit: int) -> None:
        """Replaces the limit; drawn units are kept up to the new limit."""
        self._limit = limit
        self._step = min(self._step, self._first)
        self.left = min(self.left, limit)

    @property
    def is_low(self) -> bool:
        """Whether to draw more now, before a request has to wait for it."""
        return self.left * 2 < self._step

    def take(self, units: int = 1) -> bool:
        """Uses units, if all of them are held here."""
        if self.left < units:
            return False
        self.left -= units
        self._busy = True
        return True

    def put_back(self) -> None:
        """Returns one unit that was taken and not used."""
        self.left = min(self.left + 1, self._limit)

    def want(self, missing: int) -> int:
        """How many units to draw, with ``missing`` of them needed at once."""
        return max(missing - min(self.left, 0), self._step)

    def settle(self, wanted: int, given: int) -> None:
        """Applies the store's reply to a draw, or to a return (negative, and already subtracted here)."""
        if given < 0:
            return
        self.left += given
        if given == wanted:
            self._step = min(self._step * 2, max(self._first, self._limit // _LARGEST_STEP))

    def shrink(self) -> int:
        """The units to return after a round: all units unused in it. They are subtracted here at once."""
        if self._busy or self.left <= 0:
            self._busy = False
            return 0
        idle, self.left = self.left, 0
        self._step = self._first
        return idle


HOLD_MS: Final = 10_000
"""Slots of a dead instance are free again after this time."""
_STALE_MS: Final = 8_000
"""Slots that could not be renewed for this long are no longer trusted."""
_SLOT_RETRY_MS: Final = 100
_SLOT_WAIT_MS: Final = 1_000
_RATE: Final = "rate"


class Limit:
    """The limits of one name. ``launch`` owns the calls to the store, so a cancelled waiter does not cancel them."""

    def __init__(
        self,
        port: LimitStore,
        name: str,
        instance: str,
        bounds: Bounds,
        clock: Clock,
        launch: Callable[[Limit, Coroutine[None, None, None]], asyncio.Task[None]],
    ) -> None:
        self.name = name
        self._port = port
        self._instance = instance
        self._clock = clock
        self._launch = launch
        self._slots = SlotBlock(bounds.concurrency)
        self.leave: Final = self._slots.leave
        """Returns a slot."""
        self._rate = UnitBlock(bounds.rate.units) if bounds.rate else None
        self._waiting = 0
        self._flight: asyncio.Task[None] | None = None
        self._no_slot_until_ms = 0
        self._no_unit_until_ms = 0
        self._renewed_ms = 0
        self._registered = False
        self.bounds: Bounds = bounds

    def rebind(self, bounds: Bounds) -> None:
        """Replaces the bounds from now on; running calls are not ended."""
        self._slots.rebind(bounds.concurrency)
        if bounds.rate is None:
            self._rate = None
        elif self._rate is None or bounds.rate != self.bounds.rate:
            self._rate = UnitBlock(bounds.rate.units)
        self.bounds = bounds
        self._no_slot_until_ms = self._no_unit_until_ms = 0

    @property
    def used(self) -> int:
        """Calls running on this instance."""
        return self._slots.used

    @property
    def is_used_up(self) -> bool:
        """Whether the store reported so a moment ago, or this instance uses the whole limit."""
        rate = self._rate
        if not self._slots.is_full and (rate is None or rate.left >= 1):
            return False
        return self._find_refusal(slot=True) is not None

    @property
    def is_idle(self) -> bool:
        """Whether this instance holds nothing of it, so that it needs no renewal."""
        rate = self._rate
        return (
            self._flight is None
            and not self._slots.used
            and not self._slots.held
            and (rate is None or not rate.left)
        )

    def enter_now(self, *, slot: bool = True) -> bool:
        """``enter`` without waiting; False does not mean that waiting would fail."""
        if slot and not self._slots.take():
            return False
        rate = self._rate
        if rate is not None:
            if not rate.take():
                if slot:
                    self.leave()
                return False
            if rate.is_low and self._flight is None and not self._is_dry(self._no_unit_until_ms):
                self._depart()
        return True

    async def enter(self, *, slot: bool = True) -> OverLimit | None:
        """Takes one unit of the rate and, with ``slot``, a slot that ``leave`` returns; or returns the refusal.

        Raises:
            StoreUnavailable: the local block is empty and no other can be drawn.
        """
        while not self.enter_now(slot=slot):
            if refused := self._find_refusal(slot=slot):
                return refused
            self._waiting += 1
            try:
                await asyncio.shield(self._flight or self._depart())
            finally:
                self._waiting -= 1
        return None

    @property
    def meter(self) -> UnitBlock | None:
        """The block from which ``enter`` takes units of the rate; replaced when the rate changes."""
        return self._rate

    def back_out(self, meter: UnitBlock | None) -> None:
        """Undoes an ``enter`` whose request was not served; returns its unit to ``meter``."""
        self.leave()
        if meter is not None and meter is self._rate:
            meter.put_back()

    async def renew(self) -> None:
        """One round: renews what is in use, and returns what was unused since the last round."""
        if self._flight is not None:
            return
        slots = self._slots.shrink()
        back = self._rate.shrink() if self._rate else 0
        if not slots and not back and not self._registered:
            return
        try:
            await asyncio.shield(self._depart(slots, -back))
        except StoreUnavailable:
            if self._clock.now_ms() - self._renewed_ms > _STALE_MS:
                self._slots.settle(0, 0)

    async def give_back(self) -> None:
        """Returns everything, at shutdown."""
        if self._flight is not None:
            await asyncio.wait((self._flight,))
        back = self._rate.left if self._rate else 0
        await self._depart(0, -max(0, back))

    def _is_dry(self, until_ms: int) -> bool:
        return until_ms > self._clock.now_ms()

    def _find_refusal(self, *, slot: bool) -> OverLimit | None:
        """The store's refusal of a moment ago; until it expires the store is not called again."""
        now_ms = self._clock.now_ms()
        limit, rate = self.bounds.concurrency, self.bounds.rate
        if slot and limit is not None and self._slots.is_full:
            if now_ms < self._no_slot_until_ms or self._slots.used >= limit:
                return OverLimit("concurrency", limit, _SLOT_WAIT_MS)
        elif rate and self._rate and self._rate.left < 1 and now_ms < self._no_unit_until_ms:
            return OverLimit("rate_limit", rate.units, self._no_unit_until_ms - now_ms)
        return None

    def _depart(self, slots: int | None = None, units: int | None = None) -> asyncio.Task[None]:
        """Starts the one call to the store; without arguments for what is needed now."""
        wanted = self._slots.grow(self._waiting) if slots is None else slots
        if units is None:
            units = self._rate.want(self._waiting) if self._rate and self._rate.is_low else 0
        self._flight = self._launch(self, self._fly(wanted, units))
        return self._flight

    async def _fly(self, slots: int, units: int) -> None:
        rate, per = self._rate, self.bounds.rate
        draws = (Bucket(_RATE, units, per.units, per.per_ms),) if per and units else ()
        try:
            granted = await self._port.take(
                self.name,
                self._instance,
                slots=slots,
                limit=self.bounds.concurrency or 0,
                hold_ms=HOLD_MS,
                draws=draws,
            )
        finally:
            self._flight = None
        now_ms = self._clock.now_ms()
        self._renewed_ms = now_ms
        self._registered = granted.slots > 0
        self._slots.settle(slots, granted.slots)
        if granted.slots < slots:
            self._no_slot_until_ms = now_ms + _SLOT_RETRY_MS
        for drawn in granted.drawn:
            if rate is not None:
                rate.settle(units, drawn.given)
            if 0 <= drawn.given < units:
                self._no_unit_until_ms = now_ms + max(1, drawn.note)
