"""One shared limit as this instance sees it: enter and leave without a round trip, and one call to the store at a time.

A request asks the store only where the block here is empty; everybody who waits for the same limit shares one call.
Rate units are drawn ahead. What the store refuses is remembered for a moment, so that a flood of refused requests is
no flood at the store.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from passerelle.core.errors import StoreUnavailable
from passerelle.core.ports.limits import Bucket
from passerelle.runtime.limits.blocks import SlotBlock, UnitBlock
from passerelle.runtime.limits.bounds import Refused

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from passerelle.core.ports.chance import Clock
    from passerelle.core.ports.limits import Limits
    from passerelle.runtime.limits.bounds import Bounds

HOLD_MS: Final = 10_000
"""Slots of a dead instance are free again after this."""
_STALE_MS: Final = 8_000
"""Slots that could not be renewed for so long are not trusted any more."""
_SLOT_RETRY_MS: Final = 100
_SLOT_WAIT_MS: Final = 1_000
_RATE: Final = "rate"


class Limit:
    """The limits of one name. ``launch`` owns the calls to the store, so that no waiter's end takes them along."""

    def __init__(
        self,
        port: Limits,
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
        """Gives a slot back."""
        self._rate = UnitBlock(bounds.rate.units) if bounds.rate else None
        self._waiting = 0
        self._flight: asyncio.Task[None] | None = None
        self._no_slot_until_ms = 0
        self._no_unit_until_ms = 0
        self._renewed_ms = 0
        self._registered = False
        self.bounds: Bounds = bounds

    def rebind(self, bounds: Bounds) -> None:
        """Other bounds from now on; calls under way are not ended."""
        self._slots.rebind(bounds.concurrency)
        if bounds.rate is None:
            self._rate = None
        elif self._rate is None or bounds.rate != self.bounds.rate:
            self._rate = UnitBlock(bounds.rate.units)
        self.bounds = bounds
        self._no_slot_until_ms = self._no_unit_until_ms = 0

    @property
    def used(self) -> int:
        """Calls under way here."""
        return self._slots.used

    @property
    def is_idle(self) -> bool:
        """Whether this instance holds nothing of it, so that nobody has to renew it."""
        rate = self._rate
        return (
            self._flight is None
            and not self._slots.used
            and not self._slots.held
            and (rate is None or not rate.left)
        )

    def enter_now(self, *, slot: bool = True) -> bool:
        """``enter`` without waiting for anything; False does not say that waiting would be in vain."""
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

    async def enter(self, *, slot: bool = True) -> Refused | None:
        """Takes one unit of the rate and, with ``slot``, a slot that ``leave`` gives back; or says what is in the way.

        Raises:
            StoreUnavailable: the block here is empty and there is no other to be had.
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

    async def renew(self) -> None:
        """A round: renews what is in use, and gives back what was not needed since the last one."""
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
        """Everything, for a shutdown."""
        if self._flight is not None:
            await asyncio.wait((self._flight,))
        back = self._rate.left if self._rate else 0
        await self._depart(0, -max(0, back))

    def _is_dry(self, until_ms: int) -> bool:
        return until_ms > self._clock.now_ms()

    def _find_refusal(self, *, slot: bool) -> Refused | None:
        """What the store said a moment ago; it is not asked again before that moment is over."""
        now_ms = self._clock.now_ms()
        limit, rate = self.bounds.concurrency, self.bounds.rate
        if slot and limit is not None and self._slots.is_full:
            if now_ms < self._no_slot_until_ms or self._slots.used >= limit:
                return Refused("concurrency", limit, _SLOT_WAIT_MS)
        elif rate and self._rate and self._rate.left < 1 and now_ms < self._no_unit_until_ms:
            return Refused("rate_limit", rate.units, self._no_unit_until_ms - now_ms)
        return None

    def _depart(self, slots: int | None = None, units: int | None = None) -> asyncio.Task[None]:
        """The one call to the store that is under way; without arguments for what is needed now."""
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
