"""Sentences about a routing decision for people, one per fact (VAL-8)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, assert_never

from passerelle.core.payloads.routing import (
    CandidatesResolved,
    FallbackApplied,
    RoutingDecided,
    RoutingNotPossible,
    SingleCandidate,
    TaskProfileResolved,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from passerelle.core.payloads.routing import Excluded, Exclusion, RoutingPayload
    from passerelle.core.task.retry import RetryCause

_EXCLUSIONS: Final[dict[Exclusion, str]] = {
    "tier": "gets no {} work",
    "skill": "does not have the skill {}",
    "tag": "does not have the tag {}",
    "media_type": "does not produce {}",
    "protocol": "requires the extension {}, which the caller does not use",
    "policy": "is denied by the rule {}",
    "constraint": "is not allowed by {}",
    "budget": "costs more than the budget ({} in millionths)",
    "quota": "costs more than is left of the caller's {}",
    "rate_limit": "has as much work as its limits allow",
    "breaker_open": "has failed repeatedly and gets no calls for a while",
    "paused": "is {}",
    "unreachable": "is out of reach: its card cannot be read",
    "already_tried": "was tried already",
}
_CAUSES: Final[dict[RetryCause, str]] = {
    "rejected": "refused the task",
    "failed": "failed the task",
    "unreachable": "could not be reached",
    "timed_out": "took too long",
    "lost": "was lost",
    "rate_limited": "takes no more work for now",
}
_REASONS: Final = {
    "named": "it was asked for by name",
    "continuity": "it has the context already",
    "best_score": "it fits best",
    "only_candidate": "no other agent fits",
    "command": "a command named it",
}
_NO_REASONS: Final = {
    "no_peer": "the caller may call none",
    "no_skill": "none has the skill that is asked for",
    "all_excluded": "each of them is excluded",
    "all_tried": "all that fit were tried",
}


def describe_routing(fact: RoutingPayload) -> str:
    """The sentence of a fact, without its full stop."""
    match fact:
        case TaskProfileResolved():
            return _describe_profile(fact)
        case CandidatesResolved(candidates=candidates, excluded=excluded, unnamed=unnamed):
            names = ", ".join(repr(one.peer) for one in candidates)
            return f"these agents fit, best first: {names}{_list_exclusions(excluded, unnamed)}"
        case SingleCandidate(peer=peer, excluded=excluded, unnamed=unnamed):
            return f"only agent {peer!r} fits{_list_exclusions(excluded, unnamed)}"
        case RoutingNotPossible(reason=reason, excluded=excluded, unnamed=unnamed):
            left = "no agent is left" if reason == "all_tried" else "no agent fits"
            return f"{left}: {_NO_REASONS[reason]}{_list_exclusions(excluded, unnamed)}"
        case RoutingDecided(peer=peer, reason=reason, candidates=count):
            out_of = "" if count == 1 else f" out of {count}"
            return f"agent {peer!r} was chosen{out_of}: {_REASONS[reason]}"
        case FallbackApplied(from_peer=gone, to_peer=peer, cause=cause):
            return f"agent {peer!r} took over from {gone!r}, which {_CAUSES[cause]}"
        case _:
            assert_never(fact)


def _describe_profile(fact: TaskProfileResolved) -> str:
    wanted = [
        *_list("the skills", fact.skills),
        *_list("the tags", fact.tags),
        *_list("one of the media types", fact.media_types),
    ]
    if fact.latency is not None:
        wanted.append(f"{fact.latency} work")
    if fact.budget_micros is not None:
        wanted.append(f"at most {fact.budget_micros} millionths {fact.currency or ''}".strip())
    if not fact.fallback:
        wanted.append("no fallback to another agent")
    if not fact.continuity:
        wanted.append("whichever agent has the context")
    asked = f" and asked for {'; '.join(wanted)}" if wanted else ""
    return f"the caller left the choice of a {fact.tier} agent to the gateway{asked}"


def _list(what: str, words: Iterable[str]) -> list[str]:
    named = ", ".join(words)
    return [f"{what} {named}"] if named else []


def _list_exclusions(excluded: Sequence[Excluded], unnamed: int | None) -> str:
    reasons = [
        f"{one.peer!r} {_EXCLUSIONS[one.why].format(one.ref or '')}".strip() for one in excluded
    ]
    if unnamed:
        reasons.append(f"{unnamed} more are not named")
    return f"; {', '.join(reasons)}" if reasons else ""
