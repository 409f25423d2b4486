"""The limits of one peer: a send takes a slot while it lasts, and a unit of the rate."""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from passerelle.core.errors import StoreUnavailable
from passerelle.core.peer import Unreached

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from passerelle.gateway.limits.limit import Limit


class SendLimit:
    """Counts sends; questions about tasks pass beside it, or a peer at its limit could not be asked any more."""

    def __init__(self, limit: Limit | None) -> None:
        self._limit = limit

    @asynccontextmanager
    async def enter(self) -> AsyncGenerator[Unreached | None]:
        """Gives what is in the way, in which case nothing may be sent; the slot is held until the block ends."""
        if self._limit is None:
            yield None
            return
        try:
            refused = await self._limit.enter()
        except StoreUnavailable as error:
            # Nobody knows how much the other instances have under way.
            yield Unreached(error.message, error.retry_after_s, "limit")
            return
        if refused is not None:
            reason = f"its {refused.kind.replace('_', ' ')} limit of {refused.limit} is used up"
            yield Unreached(reason, max(1, -(-refused.retry_after_ms // 1000)), "limit")
            return
        try:
            yield None
        finally:
            self._limit.leave()
