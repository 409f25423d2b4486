"""Costs, quotas, rate limits and budgets as facts (EVC-17, EXT-7).

Money is whole millionths of ``currency`` (ISO 4217), so that sums are exact.
"""

from __future__ import annotations

from typing import ClassVar, Literal, TypeAlias

from passerelle.core.event_type import EventType
from passerelle.core.wire.record import record

LimitKind: TypeAlias = Literal["cost", "quota", "rate_limit", "budget", "concurrency", "policy"]
AgentState: TypeAlias = Literal["active", "paused", "draining"]
"""Whether an agent gets work: while it is paused work waits, while it drains work is refused."""
Unit: TypeAlias = Literal["calls", "tokens", "bytes", "ms", "micros", "slots"]


@record
class LimitSubject:
    """The caller or agent that a limit applies to."""

    kind: Literal["caller", "peer"]
    name: str


@record
class LimitChanged:
    """A limit was set, changed or lifted; None is no limit (EVC-17)."""

    type: ClassVar = EventType.LIMIT_CHANGED
    limited: LimitSubject
    kind: LimitKind
    unit: Unit
    old: int | None
    new: int | None
    actor: str
    window_ms: int | None = None
    currency: str | None = None
    agent_state: AgentState | None = None
    """Whether an agent gets new work from now on, if an operator set it: then ``new`` is 0 or no limit."""
    reason: str | None = None


@record
class CostEstimated:
    """What the call is expected to cost, before it is made (EXT-7)."""

    type: ClassVar = EventType.COST_ESTIMATED
    peer: str
    amount_micros: int
    currency: str
    basis: Literal["per_call", "per_token", "per_second"]


@record
class CostRecorded:
    """What the call cost: from the peer's own usage, or from time and price (EXT-7)."""

    type: ClassVar = EventType.COST_RECORDED
    peer: str
    amount_micros: int
    currency: str
    source: Literal["peer_usage", "wall_time", "per_call"]
    duration_ms: int
    input_tokens: int | None = None
    output_tokens: int | None = None


@record
class RateLimitHit:
    """An agent answered 429, or a caller or agent is over its rate limit here (EXT-7)."""

    type: ClassVar = EventType.RATE_LIMIT_HIT
    limited: LimitSubject
    source: Literal["peer", "gateway"]
    retry_after_ms: int | None = None
    native: str | None = None


@record
class QuotaLow:
    """A threshold was crossed (EXT-7)."""

    type: ClassVar = EventType.QUOTA_LOW
    limited: LimitSubject
    kind: LimitKind
    unit: Unit
    limit: int
    used: int
    threshold_percent: int


@record
class QuotaBlocked:
    """A call was refused before it was made, or waits for the quota (EXT-7); ``resets_at`` is RFC 3339."""

    type: ClassVar = EventType.QUOTA_BLOCKED
    limited: LimitSubject
    kind: LimitKind
    unit: Unit
    limit: int
    used: int
    asked: int
    resets_at: str | None = None


LimitPayload: TypeAlias = (
    LimitChanged | CostEstimated | CostRecorded | RateLimitHit | QuotaLow | QuotaBlocked
)
