"""Rate, concurrency and open streams of callers, judged before anything else of a request: the same for every edge.

A request takes a unit of its caller's rate. One that waits or streams takes a slot too, for as long as it lasts. Of the
streams of one caller so many are open on this instance, and no more, whichever edge they came over.
"""

from __future__ import annotations

from collections import OrderedDict
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final, Protocol

from passerelle.core.errors import Limited
from passerelle.runtime.limits.bounds import Bounds

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Mapping

    from passerelle.core.principal import Principal
    from passerelle.runtime.limits.bounds import OverLimit
    from passerelle.runtime.limits.limit import Limit
    from passerelle.runtime.limits.limiter import Limiter

SEATS: Final = 64
"""Where the configuration says nothing else."""
_RETRY_S: Final = 5


class StreamSeats:
    """Counts streams by the key of their caller; a caller without one is not in it."""

    def __init__(self, most: int = SEATS) -> None:
        self.most = most
        self._taken: dict[str, int] = {}

    @property
    def taken(self) -> int:
        """Of all callers."""
        return sum(self._taken.values())

    def judge(self, caller: str) -> None:
        """Whether there is a seat for one more.

        Raises:
            Limited: the caller has all of its seats.
        """
        if self._taken.get(caller, 0) >= self.most:
            said = f"{self.most} streams of this caller are open here, and no more may be"
            raise Limited("concurrency", said, _RETRY_S)

    @contextmanager
    def take(self, caller: str) -> Generator[None]:
        """A seat for the time of the block. Raises Limited as ``judge`` does."""
        self.judge(caller)
        self._taken[caller] = self._taken.get(caller, 0) + 1
        try:
            yield
        finally:
            left = self._taken[caller] - 1
            if left:
                self._taken[caller] = left
            else:
                del self._taken[caller]


_KEPT: Final = 10_000


class AdmittedRequest(Protocol):
    """A request that was let in; whoever took a slot gives it back."""

    def leave(self) -> None:
        """Gives the slot back."""
        ...


class _Unbound:
    __slots__ = ()

    def leave(self) -> None:
        """Nothing was taken."""


UNBOUND: Final = _Unbound()


class Gate:
    """``bounds`` are those of clients by name and of issuers by name and colon: each caller has them for itself."""

    def __init__(
        self,
        limiter: Limiter,
        bounds: Mapping[str, Bounds],
        on_refused: Callable[[Principal, OverLimit], None] = lambda _who, _why: None,
        on_seen: Callable[[Principal], None] = lambda _who: None,
    ) -> None:
        """``on_seen`` hears of each request, before it is judged."""
        self._limiter = limiter
        self._bounds = dict(bounds)
        self._on_refused = on_refused
        self._on_seen = on_seen
        self._open: OrderedDict[str, Limit] = OrderedDict()
        self._names: dict[str, str] = {}
        """Under which name the bounds of an open limit are known."""

    async def enter(self, principal: Principal, *, slot: bool) -> AdmittedRequest:
        """Lets a request in.

        Raises:
            Limited: the caller is over its rate or has too many calls under way; nothing was taken.
            StoreUnavailable: nobody can tell.
        """
        self._on_seen(principal)
        limit = self._find(principal) if self._bounds else None
        if limit is None:
            return UNBOUND
        if not limit.enter_now(slot=slot) and (refused := await limit.enter(slot=slot)):
            self._on_refused(principal, refused)
            raise explain(refused)
        return limit if slot else UNBOUND

    def enter_now(self, principal: Principal) -> AdmittedRequest | None:
        """``enter`` with a slot, without waiting for anything; None does not say that waiting would be in vain."""
        self._on_seen(principal)
        limit = self._find(principal) if self._bounds else None
        if limit is None:
            return UNBOUND
        return limit if limit.enter_now() else None

    def rebind(self, bounds: Mapping[str, Bounds]) -> None:
        """Other bounds from now on; calls under way go on."""
        self._bounds = dict(bounds)
        for key, limit in self._open.items():
            limit.rebind(self._bounds.get(self._names[key], Bounds()))

    def _find(self, principal: Principal) -> Limit | None:
        """The limit of a caller; None where it is not bounded."""
        return self._open.get(principal.key) or self._start(principal)

    def _start(self, principal: Principal) -> Limit | None:
        name = find_name(principal.id)
        bounds = self._bounds.get(name)
        if bounds is None:
            return None
        key = principal.key
        limit = self._limiter.open(f"caller:{key}", bounds)
        self._open[key], self._names[key] = limit, name
        self._forget()
        return limit

    def _forget(self) -> None:
        """Issuers may have any number of callers: the oldest that holds nothing is opened again when it comes back."""
        if len(self._open) > _KEPT:
            idle = next((key for key, limit in self._open.items() if limit.is_idle), None)
            if idle is not None:
                del self._open[idle], self._names[idle]


def find_name(principal_id: str) -> str:
    """Under which name the configuration knows a principal: a client, or an issuer with its colon."""
    name, colon, _ = principal_id.partition(":")
    return name + colon


def explain(refused: OverLimit) -> Limited:
    """The error that a caller reads."""
    retry_after_s = max(1, -(-refused.retry_after_ms // 1000))
    if refused.kind == "concurrency":
        sentence = f"{refused.limit} calls are under way, and no more may be"
    else:
        sentence = f"more than {refused.limit} requests came in the time they are for"
    return Limited(refused.kind, sentence, retry_after_s)
