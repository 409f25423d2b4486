"""The memory budget of a process: callers that cannot wait are refused, others wait until there is room.

A holder never waits while it holds part of the same thing: an amount is taken as a whole, before its use. So waiters
are served eventually, in their order, within their shares. A slow reader is aborted in favour of a holder that has
waited long.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter, OrderedDict
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Literal, TypeAlias

from passerelle.core.errors import InstanceFull, Limited
from passerelle.core.frozen import frozen
from passerelle.runtime.memory.budget import Budget, MemoryShortage

if TYPE_CHECKING:
    from collections.abc import Callable

MemoryUse: TypeAlias = Literal["body", "answer", "response"]
"""Request bodies; answers of agents, including those about a task in doubt; Tasks that callers read in a form other
than the stored one."""

RoomOutcome: TypeAlias = Literal["refused", "waited", "gave_way"]
"""The outcome of a shortage: the request was refused, or waits, or a holder was aborted."""

DEFAULT_BYTES: Final = 268_435_456
"""The default budget."""
_RETRY_S: Final = 1
_REPORT_AGAIN_S: Final = 10.0
_MOST_REPORTED: Final = 256
GIVES_WAY_S: Final = 10.0
"""A holder that waited this long aborts the largest read that has held memory this long and is incomplete."""


@dataclass(eq=False, slots=True)
class Reservation:
    """An amount, held from ``granted`` until ``release``; ``go_on`` is called if it is granted later.

    ``give_way`` aborts the work it is for, which releases it.
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
        """Reduces the amount to what was actually read; it is held as long as the returned object lives."""
        self.room.settle(self, amount)
        return Hold(self)

    def release(self) -> None:
        """Releases the amount, or stops waiting for it; a second call does nothing."""
        if not self.is_over:
            self.is_over = True
            self.room.end(self)


class Hold:
    """Kept with the content that was read: its amount is released when the content is garbage collected."""

    __slots__ = ("_loop", "_reservation")

    def __init__(self, reservation: Reservation) -> None:
        self._reservation = reservation
        self._loop = asyncio.get_running_loop()

    def __del__(self) -> None:
        # __del__ may run in another thread, or during a collection.
        with suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._reservation.release)


@frozen
class MemoryAccount:
    """The room for one holder and one use."""

    room: MemoryRoom
    kind: MemoryUse
    holder: str

    def take(self, amount: int) -> None:
        """Takes ``amount`` now.

        Raises:
            Limited: the holder has used its share.
            InstanceFull: others use the rest. Nothing was taken in either case.
        """
        self.room.take(self.kind, self.holder, amount)

    def give_back(self, amount: int) -> None:
        """Returns an amount taken by ``take``."""
        self.room.give_back(self.kind, self.holder, amount)

    def reserve(
        self, amount: int, go_on: Callable[[], None], give_way: Callable[[], None]
    ) -> Reservation:
        """Takes ``amount`` as soon as there is room; more than a share counts as one."""
        return self.room.reserve(self.kind, self.holder, amount, go_on, give_way)


@dataclass(slots=True)
class MemoryDraw:
    """The total that one piece of work has taken from an account."""

    account: MemoryAccount
    amount: int = 0

    def take(self, amount: int) -> None:
        """See ``MemoryAccount.take``."""
        self.account.take(amount)
        self.amount += amount

    def take_most(self, amount: int) -> None:
        """The same; more than a share counts as one."""
        self.take(self.account.room.budget.bound(amount))

    def close(self) -> None:
        """Returns all of it."""
        amount, self.amount = self.amount, 0
        self.account.give_back(amount)


@dataclass(slots=True)
class MemoryRoom:
    """A budget with those who wait for it.

    ``tell`` is called on a shortage (kind, holder, shortage, outcome), at most every ``_REPORT_AGAIN_S`` per holder.
    ``later`` calls back after some seconds; without it no reservation is made to give way.
    """

    budget: Budget = field(default_factory=lambda: Budget(DEFAULT_BYTES))
    tell: Callable[[MemoryUse, str, MemoryShortage, RoomOutcome], None] = (
        lambda _kind, _holder, _lack, _outcome: None
    )
    count: Callable[[MemoryUse, RoomOutcome], None] = lambda _kind, _outcome: None
    """Called for each shortage with its use and outcome."""
    later: Callable[[float, Callable[[], None]], object] | None = None
    held: Counter[MemoryUse] = field(default_factory=Counter["MemoryUse"])
    _waiting: OrderedDict[Reservation, None] = field(
        default_factory=OrderedDict["Reservation", None]
    )
    _reading: dict[Reservation, None] = field(default_factory=dict["Reservation", None])
    """Reservations whose content is still being read."""
    _reported: OrderedDict[str, float] = field(default_factory=OrderedDict[str, float])
    _looks: bool = False

    @property
    def waiting(self) -> int:
        """The number of waiting reservations."""
        return len(self._waiting)

    def bind(self, kind: MemoryUse, holder: str) -> MemoryAccount:
        """The room for one holder."""
        return MemoryAccount(self, kind, holder)

    def take(self, kind: MemoryUse, holder: str, amount: int) -> None:
        """See ``MemoryAccount.take``."""
        shortage = self.budget.take(holder, amount)
        if shortage is None:
            self.held[kind] += amount
            return
        self._note(kind, holder, shortage, "refused")
        if shortage is MemoryShortage.SHARE:
            said = "the caller's requests in progress use all the memory that one caller may use"
            raise Limited("concurrency", said, _RETRY_S)
        raise InstanceFull("large requests of other callers use the memory", _RETRY_S)

    def give_back(self, kind: MemoryUse, holder: str, amount: int) -> None:
        """See ``MemoryAccount.give_back``."""
        if not amount:
            return
        self.held[kind] -= amount
        self.budget.give_back(holder, amount)
        self._grant_waiting()

    def reserve(
        self,
        kind: MemoryUse,
        holder: str,
        amount: int,
        go_on: Callable[[], None],
        give_way: Callable[[], None],
    ) -> Reservation:
        """See ``MemoryAccount.reserve``."""
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
        """Ends a reservation."""
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
        """Makes room for the first waiter of each holder, if it has waited long enough."""
        self._looks = False
        long_ago_s, seen = time.monotonic() - GIVES_WAY_S, set[str]()
        for one in tuple(self._waiting):
            if one.holder not in seen and not (one.granted or one.is_over):
                seen.add(one.holder)
                if one.since_s <= long_ago_s:
                    self._abort_slow_read(one, long_ago_s)
        if self._waiting:
            self._look_later()

    def _abort_slow_read(self, waiting: Reservation, long_ago_s: float) -> None:
        """Aborts the largest slow read that blocks a waiter."""
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

    def _grant_waiting(self) -> None:
        """Grants waiting reservations in order; one that exceeds its holder's share does not block the others."""
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
        if now_s < self._reported.get(holder, 0.0):
            return
        self._reported[holder] = now_s + _REPORT_AGAIN_S
        self._reported.move_to_end(holder)
        if len(self._reported) > _MOST_REPORTED:
            self._reported.popitem(last=False)
        self.tell(kind, holder, shortage, outcome)
