"""Logs when a setting of the store can lose acknowledged writes, which the start refuses."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from structlog.typing import FilteringBoundLogger

    from passerelle.store.replicas import RedisReplicas


@dataclass(slots=True)
class DurabilityWatch:
    """Checks the settings of all primaries by their last reports (``RedisReplicas.look``)."""

    replicas: RedisReplicas
    log: FilteringBoundLogger
    _logged: tuple[str, ...] = ()

    def look(self) -> None:
        """Logs each change of the risks, and their end."""
        risks = self.replicas.loss_risks
        if risks == self._logged:
            return
        self._logged = risks
        if risks:
            self.log.error("store.at_risk", reasons=risks)
        else:
            self.log.info("store.not_at_risk")


def describe_risks(replicas: RedisReplicas) -> str | None:
    """The message for ``/readyz``; None: no setting can lose acknowledged writes."""
    return "; ".join(replicas.loss_risks) or None
