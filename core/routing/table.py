"""The table that chooses the agent of a task, and the facts about the choice. Pure (EXT-5, PRS-10, TR-12).

``ROWS`` are the exclusions, in order: the first one that applies is the recorded reason. The remaining agents are
candidates. ``POINTS`` scores them; among equals the cheaper one comes first, then the first in the configuration. So
the same agents in the same state give the same choice, and the facts explain it.

The gateway's own agent routes to the caller's agents only: an agent that the caller may not call is no candidate, and
no fact names it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final, Literal, TypeAlias

from passerelle.core.payloads.routing import (
    Candidate,
    CandidatesResolved,
    Excluded,
    Exclusion,
    RoutingDecided,
    RoutingNotPossible,
    RoutingPayload,
    SingleCandidate,
    TaskProfileResolved,
    TaskTier,
)
from passerelle.core.routing.profile import TIERS
from passerelle.core.wire.record import change, value

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

STANDARD_ONLY: Final[frozenset[TaskTier]] = frozenset({"standard"})
"""The tiers of an agent without a tier tag."""
BACKGROUND: Final = "background"
"""The tag of an agent for background work."""
MOST_NAMED: Final = 32
"""Candidates, and as many excluded agents, that a fact names; further ones are counted."""
_MAJOR: Final = frozenset({"application", "audio", "font", "image", "model", "text", "video"})

ReachedLimit: TypeAlias = Literal["quota", "rate_limit"]


@value
class AgentOffer:
    """A callable agent at the time of routing.

    ``skills`` and ``tags`` are in lower case. ``media_types`` are its output types; empty: not declared. ``card_hash``
    None: its card was never read.
    """

    agent: str
    tiers: frozenset[TaskTier] = STANDARD_ONLY
    tags: frozenset[str] = frozenset()
    skills: frozenset[str] = frozenset()
    media_types: frozenset[str] = frozenset()
    card_hash: str | None = None
    streams: bool = False
    price_micros: int | None = None
    """The estimated price of a run; None: no price."""
    currency: str | None = None
    denied_by: str | None = None
    """The rule that denies work for it."""
    constraint: str | None = None
    """The constraint of the task that excludes it."""
    lacks: str | None = None
    """A required extension that the caller does not use."""
    over_limit: ReachedLimit | None = None
    paused: str | None = None
    """An operator paused or drains it: its state."""
    rests: bool = False
    """Its breaker is open."""
    falters: bool = False
    """Its breaker is half open, or its card could not be refreshed."""


ExclusionRow: TypeAlias = Callable[[TaskProfileResolved, AgentOffer], str | None]
"""The reason of a row to exclude an agent: a word, rule or limit; None if it does not apply."""


def find_tiers(tags: frozenset[str]) -> frozenset[TaskTier]:
    """The tiers of an agent, by the tags that the operator has set (MK-3)."""
    found: frozenset[TaskTier] = frozenset(tier for tier in TIERS if tier in tags)
    return found or STANDARD_ONLY


def _judge_tier(profile: TaskProfileResolved, offer: AgentOffer) -> str | None:
    return None if profile.tier in offer.tiers else profile.tier


def _judge_skill(profile: TaskProfileResolved, offer: AgentOffer) -> str | None:
    return next((one for one in profile.skills if one.casefold() not in offer.skills), None)


def _judge_tag(profile: TaskProfileResolved, offer: AgentOffer) -> str | None:
    return next((one for one in profile.tags if one.casefold() not in offer.tags), None)


def _judge_media_type(profile: TaskProfileResolved, offer: AgentOffer) -> str | None:
    wanted, offered = profile.media_types, offer.media_types
    if not wanted or not offered or any(_is_alike(one, by) for one in wanted for by in offered):
        return None
    return wanted[0]


def _is_alike(wanted: str, offered: str) -> bool:
    """Whether two media types or ranges overlap. Agents also declare ``text``, or words that are no media types."""
    wanted, offered = (one.partition(";")[0].strip().casefold() for one in (wanted, offered))
    if "*/*" in {wanted, offered}:
        return True
    (want, _, want_kind), (has, slash, has_kind) = wanted.partition("/"), offered.partition("/")
    if not slash:
        return has == want or has not in _MAJOR
    return want == has and (want_kind == has_kind or "*" in {want_kind, has_kind})


def _judge_budget(profile: TaskProfileResolved, offer: AgentOffer) -> str | None:
    price, budget = offer.price_micros, profile.budget_micros
    if budget is None or not price:
        return None
    is_comparable = profile.currency in {None, offer.currency}
    return None if is_comparable and price <= budget else f"{price} {offer.currency or ''}".strip()


def _judge_limit(kind: ReachedLimit) -> ExclusionRow:
    return lambda _profile, offer: kind if offer.over_limit == kind else None


ROWS: Final[tuple[tuple[Exclusion, ExclusionRow], ...]] = (
    ("unreachable", lambda _profile, offer: "card" if offer.card_hash is None else None),
    ("tier", _judge_tier),
    ("skill", _judge_skill),
    ("tag", _judge_tag),
    ("media_type", _judge_media_type),
    ("protocol", lambda _profile, offer: offer.lacks),
    ("policy", lambda _profile, offer: offer.denied_by),
    ("constraint", lambda _profile, offer: offer.constraint),
    ("budget", _judge_budget),
    ("paused", lambda _profile, offer: offer.paused),
    ("quota", _judge_limit("quota")),
    ("rate_limit", _judge_limit("rate_limit")),
    ("breaker_open", lambda _profile, offer: "breaker" if offer.rests else None),
)
"""Exclusions. Requirements of the task come before states that may change soon."""

CONTINUITY: Final = 1000
POINTS: Final[
    tuple[tuple[int, Callable[[TaskProfileResolved, AgentOffer, str | None], bool]], ...]
] = (
    (CONTINUITY, lambda profile, offer, held: profile.continuity and offer.agent == held),
    (
        100,
        lambda profile, offer, _held: profile.latency == "interactive" and offer.streams,
    ),
    (
        100,
        lambda profile, offer, _held: profile.latency == "background" and BACKGROUND in offer.tags,
    ),
    (10, lambda _profile, offer, _held: not offer.falters),
)
"""Scores: the agent that has the context outweighs everything else."""


@value
class Route:
    """The outcome for one message. ``candidates``, best first."""

    profile: TaskProfileResolved
    candidates: tuple[Candidate, ...]
    excluded: tuple[Excluded, ...] = ()
    is_held: bool = False
    """Whether the first candidate already has the context of the message."""

    @property
    def agent(self) -> str | None:
        """The agent that gets the task; None: no agent fits."""
        return self.candidates[0].peer if self.candidates else None

    @property
    def others(self) -> tuple[str, ...]:
        """The agents that may take over, in order."""
        return tuple(one.peer for one in self.candidates[1:]) if self.profile.fallback else ()

    def list_facts(self) -> tuple[RoutingPayload, ...]:
        """The facts of the choice (EXT-5): for one candidate, several, or none."""
        named = self.excluded[:MOST_NAMED]
        hidden = len(self.excluded) - len(named)
        if not self.candidates:
            reason = _name_reason(self.excluded)
            return (self.profile, RoutingNotPossible(reason, named, hidden or None))
        count, first = len(self.candidates), self.candidates[0]
        resolved: RoutingPayload = SingleCandidate(first.peer, named, hidden or None)
        if count > 1:
            hidden += max(0, count - MOST_NAMED)
            # Only the card hash of the chosen agent matters.
            shown = tuple(change(one, card_hash=None) for one in self.candidates[:MOST_NAMED])
            resolved = CandidatesResolved(shown, named, hidden or None)
        why: Literal["continuity", "only_candidate", "best_score"] = (
            "continuity" if self.is_held else "only_candidate" if count == 1 else "best_score"
        )
        decided = RoutingDecided(first.peer, why, count, first.skill, first.card_hash)
        return (self.profile, resolved, decided)


def choose(
    profile: TaskProfileResolved, offers: Sequence[AgentOffer], held: str | None = None
) -> Route:
    """Chooses among the agents, given in configuration order; ``held`` already has the context of the message."""
    fitting: list[AgentOffer] = []
    excluded: list[Excluded] = []
    for offer in offers:
        against = find_exclusion(profile, offer)
        if against is None:
            fitting.append(offer)
        else:
            excluded.append(against)
    prices = _list_prices(fitting)
    ranked = sorted(
        enumerate(fitting),
        key=lambda one: (-score(profile, one[1], held), prices[one[0]], one[0]),
    )
    skill = profile.skills[0] if profile.skills else None
    candidates = tuple(
        Candidate(offer.agent, score(profile, offer, held), skill, offer.card_hash)
        for _, offer in ranked
    )
    is_held = bool(candidates) and candidates[0].score >= CONTINUITY
    return Route(profile, candidates, tuple(excluded), is_held)


def find_exclusion(profile: TaskProfileResolved, offer: AgentOffer) -> Excluded | None:
    """The first exclusion that applies to an agent."""
    for why, row in ROWS:
        ref = row(profile, offer)
        if ref is not None:
            return Excluded(offer.agent, why, ref or None)
    return None


def score(profile: TaskProfileResolved, offer: AgentOffer, held: str | None) -> int:
    """The score of a candidate, higher is better."""
    return sum(points for points, holds in POINTS if holds(profile, offer, held))


def _list_prices(offers: Iterable[AgentOffer]) -> list[int]:
    """The price of each; prices in several currencies are not comparable and count as 0."""
    offers = list(offers)
    if len({one.currency for one in offers if one.price_micros}) > 1:
        return [0] * len(offers)
    return [one.price_micros or 0 for one in offers]


def _name_reason(
    excluded: Sequence[Excluded],
) -> Literal["no_peer", "no_skill", "all_excluded"]:
    if not excluded:
        return "no_peer"
    return "no_skill" if all(one.why == "skill" for one in excluded) else "all_excluded"
