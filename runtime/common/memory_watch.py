"""Logs when the store's memory gets low, and when new tasks are refused because of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from passerelle.store.fullness import Fullness

if TYPE_CHECKING:
    from structlog.typing import FilteringBoundLogger

    from passerelle.store.fullness import StoreMemory

_MEGABYTE: Final = 1_000_000
_EVENTS: Final = {Fullness.LOW: "store.memory_low", Fullness.FULL: "store.memory_full"}
_EFFECTS: Final = {
    Fullness.LOW: "new tasks are refused from 90 % on",
    Fullness.FULL: "new tasks are refused",
}


@dataclass(slots=True)
class MemoryWatch:
    """Checks the store's memory by the last report."""

    memory: StoreMemory
    log: FilteringBoundLogger
    _logged: Fullness = Fullness.NORMAL

    def look(self) -> None:
        """Logs each change of the memory level."""
        found = self.memory.look()
        if found is self._logged:
            return
        self._logged = found
        if found is Fullness.NORMAL:
            self.log.info("store.memory_normal")
            return
        report = self.memory.fullest
        self.log.warning(
            _EVENTS[found],
            used_bytes=report.used,
            limit_bytes=report.limit,
            effect=_EFFECTS[found],
        )


def describe_memory(memory: StoreMemory) -> str | None:
    """The memory message for ``/readyz``; None: there is enough."""
    found = memory.look()
    if found is Fullness.NORMAL:
        return None
    report = memory.fullest
    share, limit = f"{report.share:.0%}", report.limit / _MEGABYTE
    return f"{share} of {limit:,.0f} MB are used; {_EFFECTS[found]}"
