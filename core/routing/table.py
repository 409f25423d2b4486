"""The table by which an agent is chosen for a task, and the facts that say so. Pure (EXT-5, PRS-10, TR-12).

``ROWS`` is what speaks against an agent, in order: the first row that does so is the reason that is told. Who is left
is a candidate. ``POINTS`` is what speaks for one candidate more than for another; among equals the cheaper one comes
first, and among those the one that stands first in the configuration. So the same agents in the same state give the
same choice, and whoever reads the facts can follow it.

The gateway's own agent offers the caller's agents alone: one that the caller may not call is no candidate, and is named
in no fact.
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
"""The tiers of an agent that no tag of the operator names one for."""
BACKGROUND: Final = "background"
"""The tag of an agent that is good for work that nobody waits for."""
MOST_NAMED: Final = 32
"""Candidates, and as many others, that a fact names; further ones are counted."""
_MAJOR: Final = frozenset({"application", "audio", "font", "image", "model", "text", "video"})

ReachedLimit: TypeAlias = Literal["quota", "rate_limit"]


@value
class AgentOffer:
    """What is known of an agent that the caller may call, when a task is routed.

    ``skills`` and ``tags`` are in lower case. ``media_types`` is what it produces; none: it does not say.
    ``card_hash`` None: its card was never read.
    """

    agent: str
    tiers: frozenset[TaskTier] = STANDARD_ONLY
    tags: frozenset[str] = frozenset()
    skills: frozenset[str] = frozenset()
    media_types: frozenset[str] = frozenset()
    card_hash: str | None = None
    streams: bool = False
    price_micros: int | None = None
    """What a run is thought to cost; None: nothing."""
    currency: str | None = None
    denied_by: str | None = None
    """The rule that lets no work go there."""
    constraint: str | None = None
    """The constraint of the task that lets it not go there."""
    lacks: str | None = None
    """The extension that it requires and the caller does not use."""
    over_limit: ReachedLimit | None = None
    paused: str | None = None
    """An operator lets no new work go there: how it stands."""
    rests: bool = False
    """Its breaker is open."""
    falters: bool = False
    """Its breaker lets one try through, or its card could not be read again."""


ExclusionRow: TypeAlias = Callable[[TaskProfileResolved, AgentOffer], str | None]
"""What a row says against an agent: None for nothing, else the word, rule or limit that it is about."""


def find_tiers(tags: frozenset[str]) -> frozenset[TaskTier]:
    """The tiers of work that an agent gets, by the tags that the operator has given it (MK-3)."""
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
    """Whether two media types or ranges of them meet. Agents also say ``text``, or words that are no media types."""
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
"""What speaks against an agent. What the task asks comes before what may be otherwise in a moment."""

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
"""What speaks for a candidate: the agent that has its context outweighs all the rest."""


@value
class Route:
    """The outcome for one message. ``candidates`` come best first."""

    profile: TaskProfileResolved
    candidates: tuple[Candidate, ...]
    excluded: tuple[Excluded, ...] = ()
    is_held: bool = False
    """Whether the first candidate has the context of the message already."""

    @property
    def agent(self) -> str | None:
        """Who gets the task; None: nobody fits."""
        return self.candidates[0].peer if self.candidates else None

    @property
    def others(self) -> tuple[str, ...]:
        """Who may take over, in this order."""
        return tuple(one.peer for one in self.candidates[1:]) if self.profile.fallback else ()

    def list_facts(self) -> tuple[RoutingPayload, ...]:
        """What is said of it (EXT-5): one candidate, several, or none."""
        named = self.excluded[:MOST_NAMED]
        hidden = len(self.excluded) - len(named)
        if not self.candidates:
            reason = _name_reason(self.excluded)
            return (self.profile, RoutingNotPossible(reason, named, hidden or None))
        count, first = len(self.candidates), self.candidates[0]
        resolved: RoutingPayload = SingleCandidate(first.peer, named, hidden or None)
        if count > 1:
            hidden += max(0, count - MOST_NAMED)
            # The card that counts is that of the agent that gets the task.
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
    """Judges the agents, which stand in the order of the configuration; ``held`` has the context of the message."""
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
    """The first thing that speaks against an agent."""
    for why, row in ROWS:
        ref = row(profile, offer)
        if ref is not None:
            return Excluded(offer.agent, why, ref or None)
    return None


def score(profile: TaskProfileResolved, offer: AgentOffer, held: str | None) -> int:
    """What speaks for a candidate, higher is better."""
    return sum(points for points, holds in POINTS if holds(profile, offer, held))


def _list_prices(offers: Iterable[AgentOffer]) -> list[int]:
    """What each costs; of several currencies nobody can tell which is cheaper."""
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
