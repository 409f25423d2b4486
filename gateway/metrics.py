"""Counters of one process, in a registry of its own, as Prometheus reads them.

A label takes values from small closed sets or from the configuration (agents), never from a caller: what
callers send would make series without end.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import cache
from typing import Final

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    ProcessCollector,
    generate_latest,
)

from passerelle.gateway.version import VERSION

MEDIA_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
_FAST_S: Final = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 5.0)
_REQUEST_S: Final = (*_FAST_S, 15.0, 60.0, 300.0)
_BATCH: Final = (1, 2, 4, 8, 16, 32, 64, 128, 256)


class Metrics:
    """What is counted. Times are seconds."""

    def __init__(self) -> None:
        self.registry: Final = CollectorRegistry()
        registry = self.registry
        self._readers: list[Callable[[Metrics], None]] = []
        ProcessCollector(registry=registry)
        self._build = Gauge("passerelle_build_info", "1.", ["version"], registry=registry)
        self._build.labels(VERSION).set(1)
        self.requests: Final = Counter(
            "passerelle_requests",
            "Requests that were answered.",
            ["agent", "operation", "outcome"],
            registry=registry,
        )
        self.request_seconds: Final = Histogram(
            "passerelle_request_seconds",
            "Time from request to answer; a stream counts until its end.",
            ["agent", "operation"],
            buckets=_REQUEST_S,
            registry=registry,
        )
        self.appends: Final = Counter(
            "passerelle_appends", "Appends by result.", ["result"], registry=registry
        )
        self.append_seconds: Final = Histogram(
            "passerelle_append_seconds",
            "Time from a decided append to its result, tries after a failure included.",
            buckets=_FAST_S,
            registry=registry,
        )
        self.store_batches: Final = Histogram(
            "passerelle_store_batch_calls",
            "Calls that went to the store together, in one exchange.",
            buckets=_BATCH,
            registry=registry,
        )
        self.leases: Final = Gauge(
            "passerelle_leases_held",
            "Shards in which this instance may drive runs.",
            registry=registry,
        )
        self.replicas_missing: Final = Gauge(
            "passerelle_replicas_missing",
            "1: no replica of the store confirms what is written, so nothing is sent to agents and webhooks.",
            registry=registry,
        )
        self.limit_refusals: Final = Counter(
            "passerelle_limit_refusals",
            "Calls that a limit of their caller refused.",
            ["kind"],
            registry=registry,
        )
        self.peer_calls: Final = Counter(
            "passerelle_peer_calls",
            "Calls to agents by how they ended; `breaker` and `limit`: held back, nothing was sent.",
            ["agent", "outcome"],
            registry=registry,
        )
        self.channel_connections: Final = Gauge(
            "passerelle_channel_connections", "Open channel connections.", registry=registry
        )
        self.runs: Final = Gauge(
            "passerelle_runs_driven", "Runs that this instance drives now.", registry=registry
        )
        self.duties: Final = Gauge(
            "passerelle_shards_led", "Shards whose duties are this instance's.", registry=registry
        )
        self.agents: Final = Gauge(
            "passerelle_agent_card",
            "What is known of an agent: 2 a card that is fresh, 1 an old one as it is away, 0 none.",
            ["agent"],
            registry=registry,
        )
        self.breakers: Final = Gauge(
            "passerelle_agent_breaker",
            "Breaker of an interface of an agent: 0 closed, 1 on trial, 2 open: no work is sent.",
            ["agent", "interface"],
            registry=registry,
        )
        self.channel_gaps: Final = Counter(
            "passerelle_channel_gaps", "Gaps that were announced.", ["why"], registry=registry
        )
        self.deliveries: Final = Counter(
            "passerelle_deliveries",
            "Tries to deliver to webhooks, by how they were taken; `whole`: the state in place of events, "
            "`put_off`: the breaker of the origin is open, `given_up`: a dead letter.",
            ["kind", "outcome"],
            registry=registry,
        )
        self.delivery_seconds: Final = Histogram(
            "passerelle_delivery_seconds",
            "Time of one try to deliver to a webhook, until its answer or its failure.",
            ["kind"],
            buckets=_REQUEST_S,
            registry=registry,
        )
        self.config_reloads: Final = Counter(
            "passerelle_config_reloads",
            "Configurations that were read while running: ok, or refused.",
            ["outcome"],
            registry=registry,
        )
        self.config_faulty: Final = Gauge(
            "passerelle_config_faulty",
            "1 while the configuration file is wrong and the one before is in force.",
            registry=registry,
        )
        self.runtime_errors: Final = Counter(
            "passerelle_runtime_errors",
            "Errors that nobody asked for: each one is a fault to look into.",
            ["where"],
            registry=registry,
        )

        tasks = Gauge("passerelle_asyncio_tasks", "Tasks of the event loop.", registry=registry)
        tasks.set_function(_count_tasks)
        # To look a series up by its labels takes a lock; on the way of each request it is done once for each.
        self._requests = cache(self.requests.labels)
        self._request_seconds = cache(self.request_seconds.labels)
        self._appends = cache(self.appends.labels)
        self._peer_calls = cache(self.peer_calls.labels)

    def count_request(self, agent: str, operation: str, outcome: str, seconds: float) -> None:
        """One answered request; ``outcome`` is ``ok`` or the code of the error."""
        self._requests(agent, operation, outcome).inc()
        self._request_seconds(agent, operation).observe(seconds)

    def count_append(self, result: str, seconds: float) -> None:
        """One append and the time that it took."""
        self._appends(result).inc()
        self.append_seconds.observe(seconds)

    def count_refusal(self, kind: str) -> None:
        """One call that a limit of its caller refused."""
        self.limit_refusals.labels(kind).inc()

    def count_peer_call(self, agent: str, outcome: str) -> None:
        """One call to an agent, over however many of its interfaces."""
        self._peer_calls(agent, outcome).inc()

    def count_duty(self, duty: str, outcome: str) -> None:
        """How one piece of a duty ended; what failed is counted as an error of ours."""
        if outcome in {"failed", "fault"}:
            self.runtime_errors.labels(duty).inc()

    def count_delivery(self, kind: str, outcome: str) -> None:
        """What became of one try to deliver."""
        self.deliveries.labels(kind, outcome).inc()

    def time_delivery(self, kind: str, seconds: float) -> None:
        """How long one try to deliver took."""
        self.delivery_seconds.labels(kind).observe(seconds)

    def look(self, read: Callable[[Metrics], None]) -> None:
        """Calls ``read`` before each answer: for what stands somewhere, and is no event that can be counted."""
        self._readers.append(read)

    def render(self) -> bytes:
        """The text format, as ``GET /metrics`` answers it."""
        for read in self._readers:
            read(self)
        return generate_latest(self.registry)


def _count_tasks() -> float:
    try:
        return len(asyncio.all_tasks())
    except RuntimeError:
        # Rendered outside of a loop there are none.
        return 0
