"""Records facts about exceeded limits after the request, and not for every refusal.

Otherwise a caller that ignores 429 would turn every refused request into a write.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from typing import TYPE_CHECKING, Final

import structlog

from passerelle.core.errors import PasserelleError
from passerelle.core.payloads.limit import LimitSubject, RateLimitHit
from passerelle.protocol.concurrency import keep_until_done
from passerelle.runtime.common.carried import TRACE

if TYPE_CHECKING:
    from collections.abc import Callable

    from passerelle.core.payloads.limit import LimitPayload, QuotaBlocked
    from passerelle.core.ports.chance import Clock
    from passerelle.core.principal import Principal
    from passerelle.runtime.limits.limit import OverLimit
    from passerelle.runtime.records.places import Home

PAUSE_MS: Final = 10_000
"""At most one fact for each caller and limit in this time; the metrics count every refusal."""
_KEPT: Final = 4_096


class Notices:
    """Writes facts about limits into a caller's home session (EXT-7); ``count`` is called for every refusal."""

    def __init__(
        self,
        find_home: Callable[[], Home],
        clock: Clock,
        count: Callable[[str], None] = lambda _kind: None,
    ) -> None:
        self._find_home = find_home
        self._clock = clock
        self._count = count
        self._recorded_ms: OrderedDict[tuple[str, str], int] = OrderedDict()
        self._writing: set[asyncio.Task[None]] = set()

    def record_refused(self, principal: Principal, refused: OverLimit) -> None:
        """Records that a caller exceeded its rate or concurrency."""
        self._count(refused.kind)
        fact = RateLimitHit(
            limited=LimitSubject("caller", principal.id),
            source="gateway",
            retry_after_ms=refused.retry_after_ms,
            native=refused.kind,
        )
        self._record(principal, refused.kind, fact)

    def record_blocked(self, principal: Principal, meter: str, fact: QuotaBlocked) -> None:
        """Records that a caller has used up a quota or a budget; ``meter`` identifies it."""
        self._count(fact.kind)
        self._record(principal, meter, fact)

    def _record(self, principal: Principal, limit: str, fact: LimitPayload) -> None:
        name, now_ms = (principal.key, limit), self._clock.now_ms()
        if now_ms - self._recorded_ms.get(name, -PAUSE_MS) < PAUSE_MS:
            return
        self._recorded_ms[name] = now_ms
        self._recorded_ms.move_to_end(name)
        if len(self._recorded_ms) > _KEPT:
            self._recorded_ms.popitem(last=False)
        keep_until_done(
            asyncio.create_task(self._write(principal, fact, read_trace_id())), self._writing
        )

    async def drain(self) -> None:
        """Waits for running writes."""
        if self._writing:
            await asyncio.wait(self._writing)

    async def _write(self, principal: Principal, fact: LimitPayload, trace_id: str | None) -> None:
        try:
            await self._find_home().record(principal, fact, trace_id)
        except PasserelleError as error:
            structlog.get_logger().warning(
                "limit.not_recorded", caller=principal.id, why=error.message
            )


def read_trace_id() -> str | None:
    """The trace id of the request being served, if its caller sent one (ENV-8)."""
    trace = TRACE.get()
    return trace.trace_id if trace else None
