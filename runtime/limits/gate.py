"""Rate, concurrency and open streams of callers, checked first in every request: the same for all edges.

A request takes a unit of its caller's rate. A request that waits or streams also takes a slot for its duration. The
number of open streams of one caller on this instance is limited, over all edges together.
"""

from __future__ import annotations

from collections import OrderedDict
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final, Protocol

from passerelle.core.errors import Limited
from passerelle.runtime.limits.limit import Bounds

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Mapping

    from passerelle.core.principal import Principal
    from passerelle.runtime.limits.limit import Limit, OverLimit
    from passerelle.runtime.limits.limiter import Limiter

SEATS: Final = 64
"""The default, without configuration."""
_RETRY_S: Final = 5


class StreamSeats:
    """Counts streams by caller key; a caller without streams has no entry."""

    def __init__(self, most: int = SEATS) -> None:
        self.most = most
        self._taken: dict[str, int] = {}

    @property
    def taken(self) -> int:
        """Open streams of all callers."""
        return sum(self._taken.values())

    def judge(self, caller: str) -> None:
        """Checks for one more free seat.

        Raises:
            Limited: the caller uses all of its seats.
        """
        if self._taken.get(caller, 0) >= self.most:
            said = f"{self.most} streams of this caller are open here, which is the limit"
            raise Limited("concurrency", said, _RETRY_S)

    @contextmanager
    def take(self, caller: str) -> Generator[None]:
        """Takes a seat for the duration of the block. Raises Limited as ``judge`` does."""
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
    """An admitted request; a caller that took a slot returns it."""

    def leave(self) -> None:
        """Returns the slot."""
        ...


class _Unbound:
    __slots__ = ()

    def leave(self) -> None:
        """Nothing was taken."""


UNBOUND: Final = _Unbound()


class Gate:
    """``bounds`` are keyed by client name, or by issuer name and colon; each caller has its own limits."""

    def __init__(
        self,
        limiter: Limiter,
        bounds: Mapping[str, Bounds],
        on_refused: Callable[[Principal, OverLimit], None] = lambda _who, _why: None,
        on_seen: Callable[[Principal], None] = lambda _who: None,
    ) -> None:
        """``on_seen`` is called for each request, before it is checked."""
        self._limiter = limiter
        self._bounds = dict(bounds)
        self._on_refused = on_refused
        self._on_seen = on_seen
        self._open: OrderedDict[str, Limit] = OrderedDict()
        self._names: dict[str, str] = {}
        """The configuration name of the bounds of each open limit."""

    async def enter(self, principal: Principal, *, slot: bool) -> AdmittedRequest:
        """Admits a request.

        Raises:
            Limited: the caller exceeds its rate or its concurrency; nothing was taken.
            StoreUnavailable: the limit cannot be checked.
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
        """``enter`` with a slot, without waiting; None does not mean that waiting would fail."""
        self._on_seen(principal)
        limit = self._find(principal) if self._bounds else None
        if limit is None:
            return UNBOUND
        return limit if limit.enter_now() else None

    def rebind(self, bounds: Mapping[str, Bounds]) -> None:
        """Replaces the bounds from now on; running calls continue."""
        self._bounds = dict(bounds)
        for key, limit in self._open.items():
            limit.rebind(self._bounds.get(self._names[key], Bounds()))

    def _find(self, principal: Principal) -> Limit | None:
        """The limit of a caller; None if it has no bounds."""
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
        """Issuers may have any number of callers: drops the oldest idle limit, which reopens on use."""
        if len(self._open) > _KEPT:
            idle = next((key for key, limit in self._open.items() if limit.is_idle), None)
            if idle is not None:
                del self._open[idle], self._names[idle]


def find_name(principal_id: str) -> str:
    """The configuration name of a principal: a client, or an issuer with its colon."""
    name, colon, _ = principal_id.partition(":")
    return name + colon


def explain(refused: OverLimit) -> Limited:
    """The error for the caller."""
    retry_after_s = max(1, -(-refused.retry_after_ms // 1000))
    if refused.kind == "concurrency":
        sentence = f"{refused.limit} calls are in progress, which is the limit"
    else:
        sentence = f"more than {refused.limit} requests arrived in the period of the limit"
    return Limited(refused.kind, sentence, retry_after_s)
