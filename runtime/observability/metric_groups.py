"""Metrics grouped by subject, all in one registry.

Label values come from small closed sets or from the configuration (agents), never from a caller: values sent by
callers would create unbounded series.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from prometheus_client import Counter, Gauge, Histogram

from passerelle.runtime.observability.counters import IntHistogram, LabeledCounter, LabeledHistogram

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry

_FAST_S: Final = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 5.0)
_REQUEST_S: Final = (*_FAST_S, 15.0, 60.0, 300.0)
_DECISION_S: Final = (1.0, 5.0, 15.0, 60.0, 300.0, 900.0, 3600.0, 14_400.0, 86_400.0)
_BATCH: Final = (1, 2, 4, 8, 16, 32, 64, 128, 256)


class CallMetrics:
    """Requests of callers."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.requests: Final = LabeledCounter(
            "passerelle_requests",
            "Requests that were answered.",
            ["agent", "operation", "outcome"],
            registry,
        )
        self.request_seconds: Final = LabeledHistogram(
            "passerelle_request_seconds",
            "Time from request to answer; a stream counts until its end.",
            ["agent", "operation"],
            _REQUEST_S,
            registry,
        )
        self.commands: Final = LabeledCounter(
            "passerelle_v1_requests",
            "Requests to /v1 that were answered, by call; `submit_turn` and `start_task` send to agents.",
            ["operation", "outcome"],
            registry,
        )
        self.refusals: Final = Counter(
            "passerelle_limit_refusals",
            "Calls that a limit of their caller refused.",
            ["kind"],
            registry=registry,
        )


class MemoryMetrics:
    """Memory held for callers and agents."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.held: Final = Gauge(
            "passerelle_memory_held_bytes",
            "Drawn from the memory budget: large bodies of requests, large answers of agents.",
            ["of"],
            registry=registry,
        )
        self.budget: Final = Gauge(
            "passerelle_memory_budget_bytes",
            "The memory budget of this process.",
            registry=registry,
        )
        self.lacks: Final = LabeledCounter(
            "passerelle_memory_short",
            "How often there was no room in the budget, and what came of it: `refused`, `waited` or `gave_way`.",
            ["of", "outcome"],
            registry,
        )


class StoreMetrics:
    """Store metrics."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.appends: Final = LabeledCounter(
            "passerelle_appends", "Appends by result.", ["result"], registry
        )
        self.lost_tails: Final = Counter(
            "passerelle_lost_tails",
            "Losses of acknowledged writes of a shard, by what proved them.",
            ["noticed_by"],
            registry=registry,
        )
        self.append_seconds: Final = LabeledHistogram(
            "passerelle_append_seconds",
            "Time from a decided append to its result, tries after a failure included.",
            (),
            _FAST_S,
            registry,
        )
        self.batches: Final = IntHistogram(
            "passerelle_store_batch_calls",
            "Calls that went to the store together, in one exchange.",
            _BATCH,
            registry,
        )
        self.replicas_missing: Final = Gauge(
            "passerelle_replicas_missing",
            "1: no replica of the store confirms what is written, so nothing is sent to agents and webhooks.",
            registry=registry,
        )
        self.clock_skew: Final = Gauge(
            "passerelle_store_clock_skew_seconds",
            "How far the clock of the store is ahead of that of this machine.",
            registry=registry,
        )
        self.archived: Final = Counter(
            "passerelle_archived_sessions",
            "Sessions that have left the memory of the store (archived); looks that ended by an error (failed, fault).",
            ["outcome"],
            registry=registry,
        )
        self.forgotten: Final = Counter(
            "passerelle_forgotten_sessions",
            "Sessions forgotten by retention.forget (forgotten); looks that ended by an error (failed, fault).",
            ["outcome"],
            registry=registry,
        )
        self.verified: Final = Counter(
            "passerelle_verified_sessions",
            "Sessions of the daily sample that were whole or damaged; looks that ended by an error (failed, fault).",
            ["outcome"],
            registry=registry,
        )
        self.memory_share: Final = Gauge(
            "passerelle_store_memory_share",
            "Of its memory limit, what the fullest primary uses; 0 without a limit.",
            registry=registry,
        )
        self.primaries_alone: Final = Gauge(
            "passerelle_primaries_alone",
            "Promoted primaries without a replica at which messages and webhooks are sent all the same.",
            registry=registry,
        )
        self.primaries_at_risk: Final = Gauge(
            "passerelle_primaries_at_risk",
            "Primaries whose settings can lose acknowledged writes: they evict keys, or have no append-only file.",
            registry=registry,
        )


class WorkMetrics:
    """Work of this instance for all callers."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.leases: Final = Gauge(
            "passerelle_leases_held",
            "Shards in which this instance may drive runs.",
            registry=registry,
        )
        self.runs: Final = Gauge(
            "passerelle_runs_driven", "Runs that this instance drives now.", registry=registry
        )
        self.duties: Final = Gauge(
            "passerelle_shards_led",
            "Shards whose duties this instance performs.",
            registry=registry,
        )


class PeerMetrics:
    """Agents, and the calls to them."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.calls: Final = LabeledCounter(
            "passerelle_peer_calls",
            "Calls to agents by how they ended; `breaker`, `limit` and `absent`: held back, nothing was sent.",
            ["agent", "outcome"],
            registry,
        )
        self.agents: Final = Gauge(
            "passerelle_agent_card",
            "Card known of an agent: 2 a fresh one, 1 an old one because the agent is away, 0 none.",
            ["agent"],
            registry=registry,
        )
        self.paused: Final = Gauge(
            "passerelle_agent_paused",
            "Whether an agent gets no new work: 0 it does, 1 it is paused, 2 it is drained.",
            ["agent"],
            registry=registry,
        )
        self.links: Final = Gauge(
            "passerelle_agent_links",
            "Sockets of an agent that dials in, to this instance.",
            ["agent"],
            registry=registry,
        )
        self.breakers: Final = Gauge(
            "passerelle_agent_breaker",
            "Breaker of an interface of an agent: 0 closed, 1 on trial, 2 open: no work is sent.",
            ["agent", "interface"],
            registry=registry,
        )


class WebhookMetrics:
    """Deliveries to webhooks."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.deliveries: Final = Counter(
            "passerelle_deliveries",
            "Tries to deliver to webhooks, by how they were taken; `whole`: the state in place of events, "
            "`put_off`: the breaker of the origin is open, `given_up`: a dead letter.",
            ["kind", "outcome"],
            registry=registry,
        )
        self.seconds: Final = Histogram(
            "passerelle_delivery_seconds",
            "Time of one try to deliver to a webhook, until its answer or its failure.",
            ["kind"],
            buckets=_REQUEST_S,
            registry=registry,
        )


class ConfigMetrics:
    """The configuration while running."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.reloads: Final = Counter(
            "passerelle_config_reloads",
            "Configurations that were read while running: ok, or refused.",
            ["outcome"],
            registry=registry,
        )
        self.faulty: Final = Gauge(
            "passerelle_config_faulty",
            "1 while the configuration file is wrong and the one before is in force.",
            registry=registry,
        )
        self.skipped_rules: Final = Gauge(
            "passerelle_policy_rules_skipped",
            "Edited rules that count for nothing, since they allow without a condition.",
            registry=registry,
        )


class OpenWorkMetrics:
    """Open work in the store: every instance reports the same, as of the last scrape or ten seconds before."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.tasks: Final = Gauge(
            "passerelle_open_tasks",
            "Open tasks of all owners; `uncounted`: how many more there are than were read.",
            ["status"],
            registry=registry,
        )
        self.oldest_waiting: Final = Gauge(
            "passerelle_oldest_waiting_task_seconds",
            "How long the longest waiting task has waited for a person or a resource; 0: none waits.",
            registry=registry,
        )
        self.approvals: Final = Gauge(
            "passerelle_open_approvals", "Approval requests without an answer.", registry=registry
        )
        self.oldest_approval: Final = Gauge(
            "passerelle_oldest_approval_seconds",
            "How long ago the oldest of them was asked; 0: there is none.",
            registry=registry,
        )
        self.webhooks: Final = Gauge(
            "passerelle_failing_webhooks",
            "Webhooks whose deliveries fail, including those that were given up.",
            registry=registry,
        )
        self.oldest_webhook: Final = Gauge(
            "passerelle_oldest_failing_webhook_seconds",
            "For how long the one fails that has failed for longest; 0: there is none.",
            registry=registry,
        )
        self.decisions: Final = LabeledHistogram(
            "passerelle_approval_decision_seconds",
            "Time from a question to the answer of a person that decided it, on this instance.",
            ["risk"],
            _DECISION_S,
            registry,
        )
