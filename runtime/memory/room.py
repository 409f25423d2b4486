"""The budget of a process: who cannot wait is refused, who can has to wait until there is room.

Nobody waits while it holds something of the same thing: an amount is taken whole, before what it is for. So those who
wait are served sooner or later, in the order in which they came, as far as their shares go. Who has it for what comes
slowly gives way to somebody who has waited long.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter, OrderedDict
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Literal, TypeAlias

from passerelle.core.errors import InstanceFull, Limited
from passerelle.runtime.memory.budget import Budget, MemoryShortage

if TYPE_CHECKING:
    from collections.abc import Callable

MemoryUse: TypeAlias = Literal["body", "answer", "response"]
"""Bodies of requests; answers of agents, those among them that tell of a task in doubt; Tasks that callers read in
another form than the stored one."""

RoomOutcome: TypeAlias = Literal["refused", "waited", "gave_way"]
"""What came of a shortage: who wanted the room was refused, or waits, or one who had it gave way."""

DEFAULT_BYTES: Final = 268_435_456
"""Where nobody says anything else."""
_RETRY_S: Final = 1
_TOLD_AGAIN_S: Final = 10.0
_TOLD: Final = 256
GIVES_WAY_S: Final = 10.0
"""Who has waited so long has somebody give way who has had room so long, for what is still being read."""


@dataclass(eq=False, slots=True)
class Reservation:
    """An amount, held from ``granted`` until ``release``; ``go_on`` is called where it is not granted at once.

    ``give_way`` ends what it is for; it releases.
    """

    room: MemoryRoom
    kind: MemoryUse
    holder: str
    amount: int
    go_on: Callable[[], None]
    give_way: Callable[[], None]
    since_s: float
    """When it began to wait, or was granted."""
    granted: bool = False
    is_over: bool = False

    def settle(self, amount: int) -> Hold:
        """What it is for is here, and takes no more than ``amount``: that is held as long as what is returned."""
        self.room.settle(self, amount)
        return Hold(self)

    def release(self) -> None:
        """Gives it back, or stops waiting for it; a second time does nothing."""
        if not self.is_over:
            self.is_over = True
            self.room.end(self)


class Hold:
    """Goes along with what was read: as soon as nobody has that any more its amount is given back."""

    __slots__ = ("_loop", "_reservation")

    def __init__(self, reservation: Reservation) -> None:
        self._reservation = reservation
        self._loop = asyncio.get_running_loop()

    def __del__(self) -> None:
        # The last one to let go may be a thread, or the collector in the middle of anything.
        with suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._reservation.release)


@dataclass(frozen=True, slots=True)
class MemoryAccount:
    """The room as one holder has it for one kind of thing."""

    room: MemoryRoom
    kind: MemoryUse
    holder: str

    def take(self, amount: int) -> None:
        """Takes ``amount`` now.

        Raises:
            Limited: the holder has its share.
            InstanceFull: others have the rest. Nothing was taken in either case.
        """
        self.room.take(self.kind, self.holder, amount)

    def give_back(self, amount: int) -> None:
        """What ``take`` took."""
        self.room.give_back(self.kind, self.holder, amount)

    def reserve(
        self, amount: int, go_on: Callable[[], None], give_way: Callable[[], None]
    ) -> Reservation:
        """Takes ``amount`` as soon as there is room; what is more than a share counts as one."""
        return self.room.reserve(self.kind, self.holder, amount, go_on, give_way)


@dataclass(slots=True)
class MemoryDraw:
    """What one thing has taken from an account, piece by piece."""

    account: MemoryAccount
    amount: int = 0

    def take(self, amount: int) -> None:
        """See ``Account.take``."""
        self.account.take(amount)
        self.amount += amount

    def take_most(self, amount: int) -> None:
        """The same; what is more than a share counts as one."""
        self.take(self.account.room.budget.bound(amount))

    def close(self) -> None:
        """Gives all of it back."""
        amount, self.amount = self.amount, 0
        self.account.give_back(amount)


@dataclass(slots=True)
class MemoryRoom:
    """A budget with those who wait for it.

    ``tell`` is called on a shortage (kind, holder, shortage, outcome), at most every ``_TOLD_AGAIN_S`` per holder.
    ``later`` calls back after some seconds; without it no reservation is made to give way.
    """

    budget: Budget = field(default_factory=lambda: Budget(DEFAULT_BYTES))
    tell: Callable[[MemoryUse, str, MemoryShortage, RoomOutcome], None] = (
        lambda _kind, _holder, _lack, _outcome: None
    )
    count: Callable[[MemoryUse, RoomOutcome], None] = lambda _kind, _outcome: None
    """Hears of each shortage: its kind, and what came of it."""
    later: Callable[[float, Callable[[], None]], object] | None = None
    held: Counter[MemoryUse] = field(default_factory=Counter["MemoryUse"])
    _waiting: OrderedDict[Reservation, None] = field(
        default_factory=OrderedDict["Reservation", None]
    )
    _reading: dict[Reservation, None] = field(default_factory=dict["Reservation", None])
    """Those whose amount is for what is not whole yet."""
    _told: OrderedDict[str, float] = field(default_factory=OrderedDict[str, float])
    _looks: bool = False

    @property
    def waiting(self) -> int:
        """How many wait."""
        return len(self._waiting)

    def bind(self, kind: MemoryUse, holder: str) -> MemoryAccount:
        """The room for one holder."""
        return MemoryAccount(self, kind, holder)

    def take(self, kind: MemoryUse, holder: str, amount: int) -> None:
        """See ``Account.take``."""
        shortage = self.budget.take(holder, amount)
        if shortage is None:
            self.held[kind] += amount
            return
        self._note(kind, holder, shortage, "refused")
        if shortage is MemoryShortage.SHARE:
            said = "the caller has as much under way as one may have"
            raise Limited("concurrency", said, _RETRY_S)
        raise InstanceFull("large requests of others are being read", _RETRY_S)

    def give_back(self, kind: MemoryUse, holder: str, amount: int) -> None:
        """See ``Account.give_back``."""
        if not amount:
            return
        self.held[kind] -= amount
        self.budget.give_back(holder, amount)
        self._let_in()

    def reserve(
        self,
        kind: MemoryUse,
        holder: str,
        amount: int,
        go_on: Callable[[], None],
        give_way: Callable[[], None],
    ) -> Reservation:
        """See ``Account.reserve``."""
        counted, now_s = self.budget.bound(amount), time.monotonic()
        made = Reservation(self, kind, holder, counted, go_on, give_way, now_s)
        shortage = self._grant(made)
        if shortage is not None:
            self._waiting[made] = None
            self._note(kind, holder, shortage, "waited")
            self._look_later()
        return made

    def settle(self, reservation: Reservation, amount: int) -> None:
        """See ``Reservation.settle``."""
        self._reading.pop(reservation, None)
        over = reservation.amount - amount
        if over > 0 and reservation.granted:
            reservation.amount = amount
            self.give_back(reservation.kind, reservation.holder, over)

    def end(self, reservation: Reservation) -> None:
        """It is not needed any more."""
        self._waiting.pop(reservation, None)
        self._reading.pop(reservation, None)
        if reservation.granted:
            self.give_back(reservation.kind, reservation.holder, reservation.amount)

    def _grant(self, reservation: Reservation) -> MemoryShortage | None:
        shortage = self.budget.take(reservation.holder, reservation.amount)
        if shortage is None:
            reservation.granted, reservation.since_s = True, time.monotonic()
            self._reading[reservation] = None
            self.held[reservation.kind] += reservation.amount
        return shortage

    def _look_later(self) -> None:
        if self.later is not None and not self._looks:
            self._looks = True
            self.later(GIVES_WAY_S, self._look)

    def _look(self) -> None:
        """Has somebody give way to the first one of each holder, if that has waited long enough."""
        self._looks = False
        long_ago_s, seen = time.monotonic() - GIVES_WAY_S, set[str]()
        for one in tuple(self._waiting):
            if one.holder not in seen and not (one.granted or one.is_over):
                seen.add(one.holder)
                if one.since_s <= long_ago_s:
                    self._make_way(one, long_ago_s)
        if self._waiting:
            self._look_later()

    def _make_way(self, waiting: Reservation, long_ago_s: float) -> None:
        """Ends the largest reading that has taken long and is in the way of this one."""
        shortage = self.budget.find_shortage(waiting.holder, waiting.amount)
        in_the_way = [
            one
            for one in self._reading
            if one.since_s <= long_ago_s
            and (shortage is MemoryShortage.TOTAL or one.holder == waiting.holder)
        ]
        if shortage is not None and in_the_way:
            largest = max(in_the_way, key=lambda one: one.amount)
            self._note(largest.kind, largest.holder, shortage, "gave_way")
            largest.give_way()

    def _let_in(self) -> None:
        """Those who wait and for whom there is room now, in their order; who lacks its share holds up nobody else."""
        full: set[str] = set()
        for one in tuple(self._waiting):
            if one.holder in full or one.is_over:
                continue
            shortage = self._grant(one)
            if shortage is None:
                del self._waiting[one]
                one.go_on()
            elif shortage is MemoryShortage.SHARE:
                full.add(one.holder)
            else:
                return

    def _note(
        self, kind: MemoryUse, holder: str, shortage: MemoryShortage, outcome: RoomOutcome
    ) -> None:
        self.count(kind, outcome)
        now_s = time.monotonic()
        if now_s < self._told.get(holder, 0.0):
            return
        self._told[holder] = now_s + _TOLD_AGAIN_S
        self._told.move_to_end(holder)
        if len(self._told) > _TOLD:
            self._told.popitem(last=False)
        self.tell(kind, holder, shortage, outcome)
