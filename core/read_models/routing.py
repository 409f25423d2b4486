"""How an agent was chosen for a task, its cost, and the limits it reached (SNAP-11), from facts only."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import field
from typing import TypeVar

from passerelle.core.events import Event
from passerelle.core.facts import RetryPolicy
from passerelle.core.payloads.limit import (
    CostEstimated,
    CostRecorded,
    QuotaBlocked,
    QuotaLow,
    RateLimitHit,
)
from passerelle.core.payloads.routing import (
    CandidatesResolved,
    FallbackApplied,
    RoutingDecided,
    RoutingNotPossible,
    SingleCandidate,
    TaskProfileResolved,
)
from passerelle.core.payloads.task import TaskCreated
from passerelle.core.read_models.mark import FreshnessMark, not_applicable, unknown
from passerelle.core.read_models.task import name_task
from passerelle.core.task.record import TaskRecord
from passerelle.core.wire.record import record

T = TypeVar("T")


@record
class CostState:
    """Millionths of ``currency``: estimated and recorded cost of the calls."""

    currency: str
    estimated_micros: int = 0
    recorded_micros: int = 0


@record
class LimitState:
    """How often limits were reached."""

    rate_limit_hits: int = 0
    quota_low: int = 0
    quota_blocked: int = 0


@record
class RoutingSummary:
    """``policy`` is the retry policy of the newest run."""

    task_id: str
    sequence: int
    peer: str | None
    limits: LimitState
    costs: tuple[CostState, ...] = ()
    profile: TaskProfileResolved | None = None
    candidate_count: int | None = None
    decision: RoutingDecided | None = None
    blocked: RoutingNotPossible | None = None
    """Why no agent got the task, or none is left."""
    fallbacks: tuple[FallbackApplied, ...] = ()
    policy: RetryPolicy | None = None
    marks: dict[str, FreshnessMark] = field(default_factory=dict[str, FreshnessMark])


def show_routing(task: TaskRecord, events: Iterable[Event]) -> RoutingSummary:
    """The summary of a record; ``events`` are the readable ones of its task and turns."""
    payloads = [event.fact.payload for event in events]
    decision, blocked = _last(payloads, RoutingDecided), _last(payloads, RoutingNotPossible)
    count = _count_candidates(payloads, decision)
    costs = _add_costs(payloads)
    policy = task.attempts[-1].retry_policy if task.attempts else None
    limits = LimitState(
        rate_limit_hits=sum(isinstance(one, RateLimitHit) for one in payloads),
        quota_low=sum(isinstance(one, QuotaLow) for one in payloads),
        quota_blocked=sum(isinstance(one, QuotaBlocked) for one in payloads),
    )
    found = RoutingSummary(
        task_id=name_task(task),
        sequence=task.last,
        peer=task.peer,
        limits=limits,
        costs=costs,
        profile=_last(payloads, TaskProfileResolved),
        candidate_count=count,
        decision=decision,
        blocked=blocked,
        fallbacks=tuple(one for one in payloads if isinstance(one, FallbackApplied)),
        policy=policy,
    )
    found.marks.update(_mark(found, is_told=any(isinstance(one, TaskCreated) for one in payloads)))
    return found


def _count_candidates(payloads: Sequence[object], decision: RoutingDecided | None) -> int | None:
    if decision is not None:
        return decision.candidates
    if (resolved := _last(payloads, CandidatesResolved)) is not None:
        return len(resolved.candidates) + (resolved.unnamed or 0)
    if _last(payloads, SingleCandidate) is not None:
        return 1
    return None if _last(payloads, RoutingNotPossible) is None else 0


def _mark(found: RoutingSummary, *, is_told: bool) -> dict[str, FreshnessMark]:
    """``is_told``: the fact with the caller's choice of agent was read."""
    marks: dict[str, FreshnessMark] = {}
    named = unknown("no fact records how the agent was chosen")
    if is_told:
        named = not_applicable("the caller named the agent: nothing was chosen")
    if found.blocked is not None and found.decision is None:
        named = not_applicable("no agent fits: nothing was chosen")
    if found.peer is None:
        marks["peer"] = unknown("no agent has been chosen")
    for name, member in (
        ("profile", found.profile),
        ("candidateCount", found.candidate_count),
        ("decision", found.decision),
    ):
        if member is None:
            marks[name] = named
    if not found.costs:
        marks["costs"] = unknown("no fact records a cost")
    if found.policy is None:
        marks["policy"] = not_applicable("no run has started")
    if found.limits == LimitState():
        marks["limits"] = unknown(
            "no fact records that a limit was reached; others may have used it"
        )
    return marks


def _last(payloads: Iterable[object], kind: type[T]) -> T | None:
    return next((one for one in reversed([*payloads]) if isinstance(one, kind)), None)


def _add_costs(payloads: Iterable[object]) -> tuple[CostState, ...]:
    estimated: dict[str, int] = {}
    recorded: dict[str, int] = {}
    for one in payloads:
        if isinstance(one, CostEstimated):
            estimated[one.currency] = estimated.get(one.currency, 0) + one.amount_micros
        elif isinstance(one, CostRecorded):
            recorded[one.currency] = recorded.get(one.currency, 0) + one.amount_micros
    return tuple(
        CostState(currency, estimated.get(currency, 0), recorded.get(currency, 0))
        for currency in sorted({*estimated, *recorded})
    )
