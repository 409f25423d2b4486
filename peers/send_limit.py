"""The limits of one peer: a send takes a slot while it lasts, and a unit of the rate."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from passerelle.core.errors import StoreUnavailable
from passerelle.core.peer import Unreached

if TYPE_CHECKING:
    from collections.abc import Callable

    from passerelle.runtime.limits.limit import Limit


class SendLimit:
    """Counts sends; questions about tasks pass beside it, or a peer at its limit could not be asked any more."""

    def __init__(self, limit: Limit | None) -> None:
        self._limit = limit
        self.enter_now: Final[Callable[[], bool]] = limit.enter_now if limit else _let_in
        """``enter`` without waiting for anything; False does not say that waiting would be in vain."""
        self.leave: Final[Callable[[], None]] = limit.leave if limit else _let_out
        """Gives the slot back."""

    async def enter(self) -> Unreached | None:
        """What is in the way, in which case nothing may be sent; None: the slot is held until ``leave``."""
        if self._limit is None:
            return None
        try:
            refused = await self._limit.enter()
        except StoreUnavailable as error:
            # Nobody knows how much the other instances have under way.
            return Unreached(error.message, error.retry_after_s, "limit")
        if refused is None:
            return None
        reason = f"its {refused.kind.replace('_', ' ')} limit of {refused.limit} is used up"
        return Unreached(reason, max(1, -(-refused.retry_after_ms // 1000)), "limit")


def _let_in() -> bool:
    return True


def _let_out() -> None:
    """Nothing was taken."""


UNLIMITED: Final = SendLimit(None)
"""For calls that take nothing of what the peer is given."""
