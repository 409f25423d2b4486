"""What one caller may use in a period: its quotas, and the blocks of them that this instance holds.

Periods are whole minutes, hours, days and months of UTC. Like a limit, an account calls the store only if a block is
empty.
Money is charged by estimate before a run and corrected right after it: a block can be in debt, and the debt is drawn
before anything else is used.
"""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final, Literal, TypeAlias, assert_never

from passerelle.core.errors import StoreUnavailable
from passerelle.core.frozen import frozen
from passerelle.core.ports.limits import Period
from passerelle.runtime.limits.limit import HOLD_MS, UnitBlock

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Sequence

    from passerelle.core.ports.chance import Clock
    from passerelle.core.ports.limits import LimitStore

PeriodName: TypeAlias = Literal["minute", "hour", "day", "month"]

_MINUTE_MS: Final = 60_000
_HOUR_MS: Final = 60 * _MINUTE_MS
_DAY_MS: Final = 24 * _HOUR_MS
_DECEMBER: Final = 12


def find_period(name: PeriodName, now_ms: int) -> tuple[int, int]:
    """Start and end of the period that contains a time, in ms."""
    match name:
        case "minute":
            start_ms = now_ms - now_ms % _MINUTE_MS
            return start_ms, start_ms + _MINUTE_MS
        case "hour":
            start_ms = now_ms - now_ms % _HOUR_MS
            return start_ms, start_ms + _HOUR_MS
        case "day":
            start_ms = now_ms - now_ms % _DAY_MS
            return start_ms, start_ms + _DAY_MS
        case "month":
            now = datetime.fromtimestamp(now_ms / 1000, UTC)
            return _begin(now.year, now.month), (
                _begin(now.year + 1, 1)
                if now.month == _DECEMBER
                else _begin(now.year, now.month + 1)
            )
        case _:
            assert_never(name)


def _begin(year: int, month: int) -> int:
    return int(datetime(year, month, 1, tzinfo=UTC).timestamp()) * 1000


_ASK_AGAIN_MS: Final = 1_000
"""Wait after a refusal: another instance may have returned units."""
QuotaKind: TypeAlias = Literal["quota", "budget"]


@frozen
class Quota:
    """``limit`` calls in a period, or millionths of ``currency``."""

    limit: int
    period: PeriodName
    warn_percent: int = 80
    currency: str | None = None
    waits: bool = False
    """Whether an uncovered message waits until the quota resets, instead of being refused."""

    @property
    def kind(self) -> QuotaKind:
        """A quota counts calls, a budget counts money."""
        return "budget" if self.currency else "quota"

    @property
    def meter(self) -> str:
        """Its name in the store, without the limit: a changed limit keeps the usage so far."""
        return f"{self.currency or 'calls'}:{self.period}"


class Allowance:
    """One quota of one caller, as drawn by this instance."""

    def __init__(self, quota: Quota) -> None:
        self.quota = quota
        self.block = UnitBlock(quota.limit)
        self.from_ms = 0
        self.till_ms = 0
        self.left_for_all = quota.limit
        self.warned = False
        self.dry_until_ms = 0

    @property
    def used(self) -> int:
        """Usage of all instances, as far as known here."""
        return self.quota.limit - self.left_for_all - self.block.left

    @property
    def is_low(self) -> bool:
        """Whether the warning threshold is reached and no warning was sent yet."""
        return not self.warned and self.used * 100 >= self.quota.warn_percent * self.quota.limit

    def open(self, now_ms: int) -> None:
        """Starts the current period if the last one is over."""
        if now_ms >= self.till_ms:
            self.from_ms, self.till_ms = find_period(self.quota.period, now_ms)
            self.block = UnitBlock(self.quota.limit)
            self.left_for_all, self.warned, self.dry_until_ms = self.quota.limit, False, 0

    def draw(self, want: int, *, mark: bool = False) -> Period:
        """A draw request for this period."""
        quota = self.quota
        return Period(quota.meter, want, quota.limit, self.from_ms, self.till_ms, mark)


class Account:
    """The allowances of one caller. ``launch`` owns the calls to the store."""

    def __init__(
        self,
        port: LimitStore,
        name: str,
        quotas: Sequence[Quota],
        clock: Clock,
        launch: Callable[[Account, Coroutine[None, None, None]], asyncio.Task[None]],
    ) -> None:
        self.name = name
        self._port = port
        self._clock = clock
        self._launch = launch
        self._flight: asyncio.Task[None] | None = None
        self.allowances = [Allowance(quota) for quota in quotas]

    @property
    def is_idle(self) -> bool:
        """Whether this instance holds no units of it."""
        return self._flight is None and all(one.block.left == 0 for one in self.allowances)

    def may_cover(self, asks: Sequence[tuple[Allowance, int]]) -> bool:
        """Whether ``take`` may cover these units; False if it is known here that it would not.

        Quotas that are waited for do not count: an uncovered message is accepted all the same.
        """
        now_ms = self._clock.now_ms()
        return not any(
            one.block.left < units
            and now_ms < min(one.dry_until_ms, one.till_ms)
            and not one.quota.waits
            for one, units in asks
        )

    async def take(self, asks: Sequence[tuple[Allowance, int]]) -> Allowance | None:
        """Uses units of several allowances, all or nothing; returns the exhausted one, if any.

        Raises:
            StoreUnavailable: a block is empty and no other can be drawn.
        """
        while True:
            now_ms = self._clock.now_ms()
            for allowance, _ in asks:
                allowance.open(now_ms)
            short = [(one, units) for one, units in asks if one.block.left < units]
            if not short:
                for allowance, units in asks:
                    allowance.block.take(units)
                return None
            for allowance, _ in short:
                if now_ms < allowance.dry_until_ms:
                    return allowance
            if self._flight is None:
                draws = [
                    (one, one.block.want(units - max(0, one.block.left))) for one, units in short
                ]
                self._depart(draws)
            await asyncio.shield(self._flight or asyncio.sleep(0))

    def give(self, asks: Sequence[tuple[Allowance, int]]) -> None:
        """Returns units; a negative number takes more."""
        for allowance, units in asks:
            allowance.block.left += units

    async def claim_warning(self, allowance: Allowance) -> bool:
        """Whether this instance sends the warning: once in a period, over all instances."""
        allowance.warned = True
        granted = await self._port.take(
            self.name,
            "",
            slots=0,
            limit=0,
            hold_ms=HOLD_MS,
            draws=[allowance.draw(0, mark=True)],
        )
        return granted.drawn[0].note == 1

    async def renew(self) -> None:
        """One round: returns units unused since the last round, and settles debts."""
        if self._flight is not None:
            return
        now_ms = self._clock.now_ms()
        draws: list[tuple[Allowance, int]] = []
        for allowance in self.allowances:
            allowance.open(now_ms)
            back = allowance.block.shrink()
            debt = max(0, -allowance.block.left)
            if back or debt:
                draws.append((allowance, debt - back))
        if draws:
            try:
                await asyncio.shield(self._depart(draws))
            except StoreUnavailable:
                return

    async def give_back(self) -> None:
        """Returns all units, at shutdown."""
        if self._flight is not None:
            await asyncio.wait((self._flight,))
        await self._depart([(one, -one.block.left) for one in self.allowances if one.block.left])

    def _depart(self, draws: Sequence[tuple[Allowance, int]]) -> asyncio.Task[None]:
        self._flight = self._launch(self, self._fly(draws))
        return self._flight

    async def _fly(self, draws: Sequence[tuple[Allowance, int]]) -> None:
        try:
            granted = await self._port.take(
                self.name,
                "",
                slots=0,
                limit=0,
                hold_ms=HOLD_MS,
                draws=[allowance.draw(want) for allowance, want in draws],
            )
        finally:
            self._flight = None
        now_ms = self._clock.now_ms()
        for (allowance, want), drawn in zip(draws, granted.drawn, strict=True):
            allowance.block.settle(want, drawn.given)
            allowance.left_for_all = drawn.left
            if 0 <= drawn.given < want:
                allowance.dry_until_ms = min(now_ms + _ASK_AGAIN_MS, allowance.till_ms)
