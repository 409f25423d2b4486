"""Counts the open work in the store when metrics are scraped, at most every ten seconds."""

from __future__ import annotations

import asyncio
import math
from typing import TYPE_CHECKING, Final

from passerelle.core.errors import StoreUnavailable
from passerelle.core.frozen import frozen
from passerelle.core.wire.times import parse_ms

if TYPE_CHECKING:
    from prometheus_client import Gauge

    from passerelle.control.overview import Overviews
    from passerelle.core.ports.chance import Clock
    from passerelle.core.read_models.overview import (
        ApprovalOverview,
        DeliveryOverview,
        TaskOverview,
    )
    from passerelle.runtime.observability.metrics import Metrics

KEPT_MS: Final = 10_000
_WAIT_S: Final = 3.0
"""After this time the scrape shows the other metrics without these."""
UNCOUNTED: Final = "uncounted"


@frozen
class OpenWork:
    """Sets the gauges of open work; NaN while the counts are not known."""

    overviews: Overviews
    metrics: Metrics
    clock: Clock

    async def refresh(self) -> None:
        """Counts, unless it was done a moment ago."""
        try:
            found = await asyncio.wait_for(self.overviews.look_everywhere(KEPT_MS), _WAIT_S)
        except (StoreUnavailable, TimeoutError):
            self._forget()
        else:
            self._show(*found)

    def _show(
        self, tasks: TaskOverview, approvals: ApprovalOverview, webhooks: DeliveryOverview
    ) -> None:
        shown = self.metrics.open
        shown.tasks.clear()
        for status, count in tasks.by_status.items():
            shown.tasks.labels(status).set(count)
        shown.tasks.labels(UNCOUNTED).set(tasks.open - tasks.counted)
        shown.approvals.set(approvals.open)
        shown.webhooks.set(webhooks.failing)
        waiting = tasks.oldest_waiting
        self._set_age(shown.oldest_waiting, None if waiting is None else waiting.since)
        self._set_age(shown.oldest_approval, approvals.oldest_at)
        self._set_age(shown.oldest_webhook, webhooks.oldest_at)

    def _set_age(self, gauge: Gauge, at: str | None) -> None:
        age_ms = 0 if at is None else self.clock.now_ms() - parse_ms(at)
        gauge.set(max(0, age_ms) / 1000)

    def _forget(self) -> None:
        shown = self.metrics.open
        shown.tasks.clear()
        for gauge in (
            shown.oldest_waiting,
            shown.approvals,
            shown.oldest_approval,
            shown.webhooks,
            shown.oldest_webhook,
        ):
            gauge.set(math.nan)
