"""Facts about limits that were met, beside the request that met them: written later, and not once for each refusal.

A caller that does not heed 429 would else turn every refused request into a write.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from typing import TYPE_CHECKING, Final

import structlog

from passerelle.core.errors import PasserelleError
from passerelle.core.payloads.limit import Limited, RateLimitHit

if TYPE_CHECKING:
    from passerelle.core.ports import Clock
    from passerelle.core.principal import Principal
    from passerelle.gateway.control.home import Home
    from passerelle.gateway.limits.bounds import Refused

PAUSE_MS: Final = 10_000
"""One fact for each caller and limit in this time; the metrics count every refusal."""
_KEPT: Final = 4_096


class Notices:
    """Writes ``rate_limit.hit`` into the home session of a caller (EXT-7)."""

    def __init__(self, home: Home, clock: Clock) -> None:
        self._home = home
        self._clock = clock
        self._told: OrderedDict[tuple[str, str], int] = OrderedDict()
        self._writing: set[asyncio.Task[None]] = set()

    def tell(self, principal: Principal, refused: Refused) -> None:
        """Notes a refusal."""
        name, now_ms = (principal.key, refused.kind), self._clock.now_ms()
        if now_ms - self._told.get(name, -PAUSE_MS) < PAUSE_MS:
            return
        self._told[name] = now_ms
        self._told.move_to_end(name)
        if len(self._told) > _KEPT:
            self._told.popitem(last=False)
        writing = asyncio.create_task(self._write(principal, refused))
        self._writing.add(writing)
        writing.add_done_callback(self._writing.discard)

    async def drain(self) -> None:
        """Waits for what is being written."""
        if self._writing:
            await asyncio.wait(self._writing)

    async def _write(self, principal: Principal, refused: Refused) -> None:
        fact = RateLimitHit(
            limited=Limited("caller", principal.id),
            source="gateway",
            retry_after_ms=refused.retry_after_ms,
            native=refused.kind,
        )
        try:
            await self._home.record(principal, fact)
        except PasserelleError as error:
            structlog.get_logger().warning("limit.untold", caller=principal.id, why=error.message)
