"""Facts about limits that were met, beside the request that met them: written later, and not once for each refusal.

A caller that does not heed 429 would else turn every refused request into a write.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from typing import TYPE_CHECKING, Final

import structlog

from passerelle.core.errors import PasserelleError
from passerelle.core.payloads.limit import LimitSubject, RateLimitHit
from passerelle.runtime.common.carried import TRACE

if TYPE_CHECKING:
    from collections.abc import Callable

    from passerelle.core.payloads.limit import LimitPayload, QuotaBlocked
    from passerelle.core.ports.chance import Clock
    from passerelle.core.principal import Principal
    from passerelle.runtime.limits.bounds import OverLimit
    from passerelle.runtime.records.places import Home

PAUSE_MS: Final = 10_000
"""One fact for each caller and limit in this time; the metrics count every refusal."""
_KEPT: Final = 4_096


class Notices:
    """Writes facts about limits into the home session of a caller (EXT-7); ``count`` hears of every refusal."""

    def __init__(
        self,
        find_home: Callable[[], Home],
        clock: Clock,
        count: Callable[[str], None] = lambda _kind: None,
    ) -> None:
        self._find_home = find_home
        self._clock = clock
        self._count = count
        self._told: OrderedDict[tuple[str, str], int] = OrderedDict()
        self._writing: set[asyncio.Task[None]] = set()

    def record_refused(self, principal: Principal, refused: OverLimit) -> None:
        """Notes that a caller met its rate or its concurrency."""
        self._count(refused.kind)
        fact = RateLimitHit(
            limited=LimitSubject("caller", principal.id),
            source="gateway",
            retry_after_ms=refused.retry_after_ms,
            native=refused.kind,
        )
        self._tell(principal, refused.kind, fact)

    def record_blocked(self, principal: Principal, meter: str, fact: QuotaBlocked) -> None:
        """Notes that a caller has used up a quota or a budget; ``meter`` tells it from the others."""
        self._count(fact.kind)
        self._tell(principal, meter, fact)

    def _tell(self, principal: Principal, limit: str, fact: LimitPayload) -> None:
        name, now_ms = (principal.key, limit), self._clock.now_ms()
        if now_ms - self._told.get(name, -PAUSE_MS) < PAUSE_MS:
            return
        self._told[name] = now_ms
        self._told.move_to_end(name)
        if len(self._told) > _KEPT:
            self._told.popitem(last=False)
        writing = asyncio.create_task(self._write(principal, fact, read_trace_id()))
        self._writing.add(writing)
        writing.add_done_callback(self._writing.discard)

    async def drain(self) -> None:
        """Waits for what is being written."""
        if self._writing:
            await asyncio.wait(self._writing)

    async def _write(self, principal: Principal, fact: LimitPayload, trace_id: str | None) -> None:
        try:
            await self._find_home().record(principal, fact, trace_id)
        except PasserelleError as error:
            structlog.get_logger().warning("limit.untold", caller=principal.id, why=error.message)


def read_trace_id() -> str | None:
    """The trace of the request that is served now, where its caller named one (ENV-8)."""
    trace = TRACE.get()
    return trace.trace_id if trace else None
