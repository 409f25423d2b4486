"""How an agent was chosen: profile, candidates, decision, fallback (EXT-5, PRS-10, TR-12, MK-3)."""

from __future__ import annotations

from typing import ClassVar, Literal, TypeAlias

from passerelle.core.event_type import EventType
from passerelle.core.wire.record import record

Exclusion: TypeAlias = Literal[
    "tier",
    "skill",
    "tag",
    "media_type",
    "protocol",
    "policy",
    "constraint",
    "budget",
    "quota",
    "rate_limit",
    "breaker_open",
    "paused",
    "unreachable",
    "already_tried",
]
TaskTier: TypeAlias = Literal["standard", "specialist"]
Latency: TypeAlias = Literal["interactive", "background"]


@record
class Candidate:
    """An agent that fits; ``score`` orders candidates, higher is better."""

    peer: str
    score: int
    skill: str | None = None
    card_hash: str | None = None


@record
class Excluded:
    """An agent that does not fit, and the first reason; ``ref`` names the rule or limit."""

    peer: str
    why: Exclusion
    ref: str | None = None


@record
class TaskProfileResolved:
    """The task's requirements for an agent (EXT-5, TR-12); ``tier`` is the coarse class (MK-3)."""

    type: ClassVar = EventType.TASK_PROFILE_RESOLVED
    tier: TaskTier
    source: Literal["caller", "configuration", "default"]
    skills: tuple[str, ...] = ()
    tags: tuple[str, ...] = ()
    media_types: tuple[str, ...] = ()
    latency: Latency | None = None
    budget_micros: int | None = None
    currency: str | None = None
    fallback: bool = True
    continuity: bool = True


@record
class CandidatesResolved:
    """The agents that fit, best first, and those that do not (EXT-5); ``unnamed`` counts further ones of both."""

    type: ClassVar = EventType.ROUTING_CANDIDATES_RESOLVED
    candidates: tuple[Candidate, ...]
    excluded: tuple[Excluded, ...] = ()
    unnamed: int | None = None


@record
class RoutingDecided:
    """The agent that gets the task (EXT-5); ``candidates`` counts those it was chosen from."""

    type: ClassVar = EventType.ROUTING_DECIDED
    peer: str
    reason: Literal["named", "continuity", "best_score", "only_candidate", "command"]
    candidates: int
    skill: str | None = None
    card_hash: str | None = None


@record
class FallbackApplied:
    """Another agent takes over; ``run_id`` of the scope is the run that ended (EXT-5, ATT-16)."""

    type: ClassVar = EventType.ROUTING_FALLBACK_APPLIED
    from_peer: str
    to_peer: str
    cause: Literal["rejected", "failed", "unreachable", "timed_out", "lost", "rate_limited"]
    ordinal: int


@record
class RoutingNotPossible:
    """No agent fits and none was called, or all that fit were tried (EXT-5)."""

    type: ClassVar = EventType.ROUTING_NOT_POSSIBLE
    reason: Literal["no_peer", "no_skill", "all_excluded", "all_tried"]
    excluded: tuple[Excluded, ...] = ()
    unnamed: int | None = None


@record
class SingleCandidate:
    """Exactly one agent fits, so there was no choice (EXT-5)."""

    type: ClassVar = EventType.ROUTING_SINGLE_CANDIDATE
    peer: str
    excluded: tuple[Excluded, ...] = ()
    unnamed: int | None = None


RoutingPayload: TypeAlias = (
    TaskProfileResolved
    | CandidatesResolved
    | RoutingDecided
    | FallbackApplied
    | RoutingNotPossible
    | SingleCandidate
)
