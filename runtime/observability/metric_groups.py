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
            "Memory in use of the budget: large bodies of requests, large answers of agents.",
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
            "Requests for memory over the budget, by outcome: `refused`, `waited` or `gave_way`.",
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
            "Losses of acknowledged writes of a shard, by what detected them.",
            ["noticed_by"],
            registry=registry,
        )
        self.append_seconds: Final = LabeledHistogram(
            "passerelle_append_seconds",
            "Time from a decided append to its result, including retries.",
            (),
            _FAST_S,
            registry,
        )
        self.batches: Final = IntHistogram(
            "passerelle_store_batch_calls",
            "Calls to the store in one pipelined exchange.",
            _BATCH,
            registry,
        )
        self.replicas_missing: Final = Gauge(
            "passerelle_replicas_missing",
            "1: no replica of the store confirms writes, so nothing is sent to agents and webhooks.",
            registry=registry,
        )
        self.clock_skew: Final = Gauge(
            "passerelle_store_clock_skew_seconds",
            "Clock of the store minus the clock of this machine.",
            registry=registry,
        )
        self.archived: Final = Counter(
            "passerelle_archived_sessions",
            "Sessions moved from memory to the archive (archived); runs of the archiver that failed (failed, fault).",
            ["outcome"],
            registry=registry,
        )
        self.forgotten: Final = Counter(
            "passerelle_forgotten_sessions",
            "Sessions deleted by retention.forget (forgotten); runs that failed (failed, fault).",
            ["outcome"],
            registry=registry,
        )
        self.verified: Final = Counter(
            "passerelle_verified_sessions",
            "Sessions of the daily sample that were whole or damaged; checks that failed (failed, fault).",
            ["outcome"],
            registry=registry,
        )
        self.blob_failures: Final = Counter(
            "passerelle_blob_failures",
            "Reads and writes of large content that its place refused: a full folder, a bucket that does not answer.",
            registry=registry,
        )
        self.memory_share: Final = Gauge(
            "passerelle_store_memory_share",
            "Memory use of the fullest primary, as a share of its limit; 0 without a limit.",
            registry=registry,
        )
        self.primaries_alone: Final = Gauge(
            "passerelle_primaries_alone",
            "Promoted primaries without a replica; messages and webhooks are sent nevertheless.",
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
            "Calls to agents by outcome; `breaker`, `limit` and `absent`: nothing was sent.",
            ["agent", "outcome"],
            registry,
        )
        self.agents: Final = Gauge(
            "passerelle_agent_card",
            "Card of an agent: 2 current, 1 outdated because the agent is not reachable, 0 none.",
            ["agent"],
            registry=registry,
        )
        self.paused: Final = Gauge(
            "passerelle_agent_paused",
            "Whether an agent gets new work: 0 it does, 1 it is paused, 2 it is drained.",
            ["agent"],
            registry=registry,
        )
        self.links: Final = Gauge(
            "passerelle_agent_links",
            "Sockets to this instance of an agent that dials in.",
            ["agent"],
            registry=registry,
        )
        self.breakers: Final = Gauge(
            "passerelle_agent_breaker",
            "Circuit breaker of an interface of an agent: 0 closed, 1 half-open, 2 open: no work is sent.",
            ["agent", "interface"],
            registry=registry,
        )


class WebhookMetrics:
    """Deliveries to webhooks."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.deliveries: Final = Counter(
            "passerelle_deliveries",
            "Delivery attempts to webhooks, by outcome; `whole`: the state in place of events, "
            "`put_off`: the breaker of the origin is open, `given_up`: a dead letter.",
            ["kind", "outcome"],
            registry=registry,
        )
        self.seconds: Final = Histogram(
            "passerelle_delivery_seconds",
            "Duration of a delivery attempt to a webhook, until its response or failure.",
            ["kind"],
            buckets=_REQUEST_S,
            registry=registry,
        )


class ConfigMetrics:
    """The configuration while running."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.reloads: Final = Counter(
            "passerelle_config_reloads",
            "Reloads of the configuration: ok, or refused.",
            ["outcome"],
            registry=registry,
        )
        self.faulty: Final = Gauge(
            "passerelle_config_faulty",
            "1 while the configuration file is invalid and the previous configuration is in effect.",
            registry=registry,
        )
        self.skipped_rules: Final = Gauge(
            "passerelle_policy_rules_skipped",
            "Edited rules that are ignored, because they allow without a condition.",
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
            "Age of the oldest wait of a task for a person or a resource; 0: none waits.",
            registry=registry,
        )
        self.approvals: Final = Gauge(
            "passerelle_open_approvals", "Approval requests without an answer.", registry=registry
        )
        self.oldest_approval: Final = Gauge(
            "passerelle_oldest_approval_seconds",
            "Age of the oldest open approval request; 0: there is none.",
            registry=registry,
        )
        self.webhooks: Final = Gauge(
            "passerelle_failing_webhooks",
            "Webhooks whose deliveries fail, including those that were given up.",
            registry=registry,
        )
        self.oldest_webhook: Final = Gauge(
            "passerelle_oldest_failing_webhook_seconds",
            "Time for which the longest failing webhook has failed; 0: there is none.",
            registry=registry,
        )
        self.decisions: Final = LabeledHistogram(
            "passerelle_approval_decision_seconds",
            "Time from an approval request to the decision of a person, on this instance.",
            ["risk"],
            _DECISION_S,
            registry,
        )
