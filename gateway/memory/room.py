"""The budget of a process: who cannot wait is refused, who can has to wait until there is room.

Nobody waits while it holds something of the same thing: an amount is taken whole, before what it is for. So those who
wait are served sooner or later, in the order in which they came, as far as their shares go.
"""

from __future__ import annotations

import time
from collections import Counter, OrderedDict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Literal, TypeAlias

from passerelle.core.errors import InstanceFull, Limited
from passerelle.gateway.memory.budget import Budget, Lack

if TYPE_CHECKING:
    from collections.abc import Callable

Kind: TypeAlias = Literal["body", "answer"]
"""Bodies of requests; answers of agents, those among them that tell of a task in doubt."""

DEFAULT_BYTES: Final = 268_435_456
"""Where nobody says anything else."""
_RETRY_S: Final = 1
_TOLD_AGAIN_S: Final = 10.0
_TOLD: Final = 256


@dataclass(eq=False, slots=True)
class Reservation:
    """An amount, held from ``granted`` until ``release``; ``go_on`` is called where it is not granted at once."""

    room: MemoryRoom
    kind: Kind
    holder: str
    amount: int
    go_on: Callable[[], None]
    granted: bool = False
    is_over: bool = False

    def release(self) -> None:
        """Gives it back, or stops waiting for it; a second time does nothing."""
        if not self.is_over:
            self.is_over = True
            self.room.end(self)


@dataclass(frozen=True, slots=True)
class Account:
    """The room as one holder has it for one kind of thing."""

    room: MemoryRoom
    kind: Kind
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

    def reserve(self, amount: int, go_on: Callable[[], None]) -> Reservation:
        """Takes ``amount`` as soon as there is room; what is more than a share counts as one."""
        return self.room.reserve(self.kind, self.holder, amount, go_on)


@dataclass(slots=True)
class MemoryRoom:
    """A budget with those who wait for it.

    ``tell`` hears of a lack, once in a while for each holder: kind, holder, lack, and whether it waits.
    """

    budget: Budget = field(default_factory=lambda: Budget(DEFAULT_BYTES))
    tell: Callable[[Kind, str, Lack, bool], None] = lambda _kind, _holder, _lack, _waits: None
    count: Callable[[Kind, str], None] = lambda _kind, _outcome: None
    """Hears of each lack: its kind, and what came of it: ``refused`` or ``waited``."""
    held: Counter[Kind] = field(default_factory=Counter["Kind"])
    _waiting: OrderedDict[Reservation, None] = field(
        default_factory=OrderedDict["Reservation", None]
    )
    _told: OrderedDict[str, float] = field(default_factory=OrderedDict[str, float])

    @property
    def waiting(self) -> int:
        """How many wait."""
        return len(self._waiting)

    def bind(self, kind: Kind, holder: str) -> Account:
        """The room for one holder."""
        return Account(self, kind, holder)

    def take(self, kind: Kind, holder: str, amount: int) -> None:
        """See ``Account.take``."""
        lack = self.budget.take(holder, amount)
        if lack is None:
            self.held[kind] += amount
            return
        self._note(kind, holder, lack, waits=False)
        if lack is Lack.SHARE:
            said = "the caller has as much under way as one may have"
            raise Limited("concurrency", said, _RETRY_S)
        raise InstanceFull("large requests of others are being read", _RETRY_S)

    def give_back(self, kind: Kind, holder: str, amount: int) -> None:
        """See ``Account.give_back``."""
        if not amount:
            return
        self.held[kind] -= amount
        self.budget.give_back(holder, amount)
        self._let_in()

    def reserve(
        self, kind: Kind, holder: str, amount: int, go_on: Callable[[], None]
    ) -> Reservation:
        """See ``Account.reserve``."""
        made = Reservation(self, kind, holder, self.budget.bound(amount), go_on)
        lack = self._grant(made)
        if lack is not None:
            self._waiting[made] = None
            self._note(kind, holder, lack, waits=True)
        return made

    def end(self, reservation: Reservation) -> None:
        """It is not needed any more."""
        self._waiting.pop(reservation, None)
        if reservation.granted:
            self.give_back(reservation.kind, reservation.holder, reservation.amount)

    def _grant(self, reservation: Reservation) -> Lack | None:
        lack = self.budget.take(reservation.holder, reservation.amount)
        if lack is None:
            reservation.granted = True
            self.held[reservation.kind] += reservation.amount
        return lack

    def _let_in(self) -> None:
        """Those who wait and for whom there is room now, in their order; who lacks its share holds up nobody else."""
        full: set[str] = set()
        for one in tuple(self._waiting):
            if one.holder in full or one.is_over:
                continue
            lack = self._grant(one)
            if lack is None:
                del self._waiting[one]
                one.go_on()
            elif lack is Lack.SHARE:
                full.add(one.holder)
            else:
                return

    def _note(self, kind: Kind, holder: str, lack: Lack, *, waits: bool) -> None:
        self.count(kind, "waited" if waits else "refused")
        now_s = time.monotonic()
        if now_s < self._told.get(holder, 0.0):
            return
        self._told[holder] = now_s + _TOLD_AGAIN_S
        self._told.move_to_end(holder)
        if len(self._told) > _TOLD:
            self._told.popitem(last=False)
        self.tell(kind, holder, lack, waits)
