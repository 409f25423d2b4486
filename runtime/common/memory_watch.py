"""Says when the memory of the store gets low, and when new tasks are refused for it."""

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
    """Looks at the memory of the store, as it was last heard."""

    memory: StoreMemory
    log: FilteringBoundLogger
    _told: Fullness = Fullness.NORMAL

    def look(self) -> None:
        """Logs each change of what the memory that is used means."""
        found = self.memory.look()
        if found is self._told:
            return
        self._told = found
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
    """What ``/readyz`` says of it; None: there is room."""
    found = memory.look()
    if found is Fullness.NORMAL:
        return None
    report = memory.fullest
    share, limit = f"{report.share:.0%}", report.limit / _MEGABYTE
    return f"{share} of {limit:,.0f} MB are used; {_EFFECTS[found]}"
