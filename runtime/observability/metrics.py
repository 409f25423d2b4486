"""Metrics of one process, in a registry of its own, for Prometheus.

Label values come from small closed sets or from the configuration (agents), never from a caller: values sent by
callers would create unbounded series.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import Final, cast

from prometheus_client import CollectorRegistry, Counter, Gauge, ProcessCollector, generate_latest
from prometheus_client.metrics_core import Metric
from prometheus_client.openmetrics import exposition
from prometheus_client.registry import Collector

from passerelle.runtime.common.version import VERSION
from passerelle.runtime.observability.metric_groups import (
    CallMetrics,
    ConfigMetrics,
    MemoryMetrics,
    OpenWorkMetrics,
    PeerMetrics,
    StoreMetrics,
    WebhookMetrics,
    WorkMetrics,
)

MEDIA_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
OPEN_MEDIA_TYPE: Final = "application/openmetrics-text; version=1.0.0; charset=utf-8"
"""The only one of the two formats with exemplars."""


_generate_open: Final = cast(
    "Callable[[CollectorRegistry], bytes]",
    exposition.generate_latest,  # pyright: ignore[reportUnknownMemberType] - it has no types
)


class Metrics:
    """All metrics. Times are seconds."""

    def __init__(self) -> None:
        self.registry: Final = CollectorRegistry()
        registry = self.registry
        self._readers: list[Callable[[Metrics], None]] = []
        ProcessCollector(registry=registry)
        self._build = Gauge("passerelle_build_info", "1.", ["version"], registry=registry)
        self._build.labels(VERSION).set(1)
        self.calls: Final = CallMetrics(registry)
        self.memory: Final = MemoryMetrics(registry)
        self.store: Final = StoreMetrics(registry)
        self.work: Final = WorkMetrics(registry)
        self.peers: Final = PeerMetrics(registry)
        self.webhooks: Final = WebhookMetrics(registry)
        self.config: Final = ConfigMetrics(registry)
        self.open: Final = OpenWorkMetrics(registry)
        self.runtime_errors: Final = Counter(
            "passerelle_runtime_errors",
            "Unexpected errors: each one is a fault to investigate.",
            ["where"],
            registry=registry,
        )
        tasks = Gauge("passerelle_asyncio_tasks", "Tasks of the event loop.", registry=registry)
        tasks.set_function(_count_tasks)

    def add(self, collector: Collector) -> None:
        """Adds a collector to the registry."""
        self.registry.register(collector)

    def count_request(
        self, agent: str, operation: str, outcome: str, seconds: float, trace_id: str = ""
    ) -> None:
        """Counts one answered request; ``outcome`` is ``ok`` or the error code, ``trace_id`` its caller's trace."""
        self.calls.requests.counts[agent, operation, outcome] += 1
        self.calls.request_seconds.observe(seconds, (agent, operation), trace_id)

    def count_v1(self, operation: str, outcome: str) -> None:
        """Counts one answered request to ``/v1``; ``outcome`` is ``ok`` or the error code."""
        self.calls.commands.counts[operation, outcome] += 1

    def time_decision(self, risk: str, seconds: float) -> None:
        """Records how long an approval was open until a person decided it."""
        self.open.decisions.observe(seconds, (risk,))

    def count_refusal(self, kind: str) -> None:
        """Counts one call refused by a limit of its caller."""
        self.calls.refusals.labels(kind).inc()

    def count_peer_call(self, agent: str, outcome: str) -> None:
        """Counts one call to an agent, over all interfaces tried."""
        self.peers.calls.counts[agent, outcome] += 1

    def count_duty(self, duty: str, outcome: str) -> None:
        """Counts the outcome of one step of a duty; failures also count as runtime errors."""
        if outcome in {"failed", "fault"}:
            self.runtime_errors.labels(duty).inc()

    def count_archived(self, outcome: str, sessions: int) -> None:
        """Counts archived sessions, or a failed look, which is a runtime error as well."""
        self.store.archived.labels(outcome).inc(sessions)
        if outcome != "archived":
            self.runtime_errors.labels("archive").inc()

    def count_forgotten(self, outcome: str, sessions: int) -> None:
        """Counts sessions forgotten by age, or a failed look, which is a runtime error as well."""
        self.store.forgotten.labels(outcome).inc(sessions)
        if outcome != "forgotten":
            self.runtime_errors.labels("retention").inc()

    def count_verified(self, outcome: str, sessions: int) -> None:
        """Counts verified sessions, or a failed look, which is a runtime error as well."""
        self.store.verified.labels(outcome).inc(sessions)
        if outcome in {"failed", "fault"}:
            self.runtime_errors.labels("verify").inc()

    def count_delivery(self, kind: str, outcome: str) -> None:
        """Counts the outcome of one delivery attempt."""
        self.webhooks.deliveries.labels(kind, outcome).inc()

    def time_delivery(self, kind: str, seconds: float) -> None:
        """Records the duration of one delivery attempt."""
        self.webhooks.seconds.labels(kind).observe(seconds)

    def look(self, read: Callable[[Metrics], None]) -> None:
        """Calls ``read`` before each scrape, for values that are state rather than counted events."""
        self._readers.append(read)

    def render(self, *, exemplars: bool = False) -> bytes:
        """The text format, as ``GET /metrics`` returns it; with ``exemplars`` OpenMetrics (PRS-11)."""
        for read in self._readers:
            read(self)
        shown = cast("CollectorRegistry", _WithoutBirths(self.registry))
        return _generate_open(shown) if exemplars else generate_latest(shown)


class _WithoutBirths:
    """A registry view without ``_created`` series: they are a third of all, and unused."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._registry = registry

    def collect(self) -> Iterator[Metric]:
        for family in self._registry.collect():
            family.samples = [one for one in family.samples if not one.name.endswith("_created")]
            yield family


def _count_tasks() -> float:
    try:
        return len(asyncio.all_tasks())
    except RuntimeError:
        # Outside of an event loop there are no tasks.
        return 0
