"""Reports clock skew between this machine and the store. It changes nothing: deadlines follow the store's clock."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from structlog.typing import FilteringBoundLogger

    from passerelle.store.clock import StoreClock

NOTABLE_MS: Final = 1_000
"""Tokens and signatures are verified by this machine's clock, and ours by the clocks of others."""
GRAVE_MS: Final = 30_000


@dataclass(slots=True)
class SkewWatch:
    """Compares the clocks by the store times seen last."""

    clock: StoreClock
    log: FilteringBoundLogger
    _is_logged: bool = False

    def look(self) -> None:
        """Logs when the skew becomes notable, and when it ends."""
        skew_ms = self.clock.skew_ms
        is_notable = abs(skew_ms) > NOTABLE_MS
        if is_notable == self._is_logged:
            return
        self._is_logged = is_notable
        if is_notable:
            self.log.warning("clock.skew", store_ahead_s=round(skew_ms / 1000, 1))
        else:
            self.log.info("clock.no_skew")


def describe_skew(clock: StoreClock) -> str | None:
    """The clock message for ``/readyz``; None: the clocks agree well enough."""
    skew_ms = clock.skew_ms
    if abs(skew_ms) <= GRAVE_MS:
        return None
    way = "ahead of" if skew_ms > 0 else "behind"
    return f"the store is {abs(round(skew_ms / 1000))} s {way} this machine; deadlines follow the store"
