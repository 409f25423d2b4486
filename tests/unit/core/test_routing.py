"""Which agent gets a task: every combination of a profile against a second implementation of the rules."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from passerelle.core.errors import InvalidInput
from passerelle.core.event_type import EventType
from passerelle.core.payloads.routing import (
    CandidatesResolved,
    RoutingDecided,
    RoutingNotPossible,
    SingleCandidate,
    TaskProfileResolved,
)
from passerelle.core.routing.profile import DEFAULT, LATENCIES, MEMBERS, TIERS, read_profile
from passerelle.core.routing.table import MOST_NAMED, ROWS, AgentOffer, choose, find_tiers

BOTH = frozenset(TIERS)
NONE = frozenset[str]()
CHEAP = AgentOffer(
    "cheap", BOTH, media_types=frozenset({"text/plain"}), card_hash="c", currency="EUR"
)
WISE = AgentOffer(
    "wise",
    find_tiers(frozenset({"specialist"})),
    tags=frozenset({"eu"}),
    skills=frozenset({"translate"}),
    media_types=frozenset({"application/pdf", "text/*"}),
    card_hash="w",
    streams=True,
    price_micros=500,
    currency="EUR",
)
SLOW = AgentOffer(
    "slow",
    BOTH,
    tags=frozenset({"eu", "background"}),
    skills=frozenset({"translate", "sum"}),
    card_hash="s",
    price_micros=50,
    currency="EUR",
)
THREE = (WISE, CHEAP, SLOW)
PROFILES = [
    TaskProfileResolved(
        tier=tier,
        source="caller",
        skills=skills,
        tags=tags,
        media_types=media_types,
        latency=latency,
        budget_micros=budget,
        currency=currency,
        fallback=fallback,
        continuity=continuity,
    )
    for tier, skills, tags, media_types, latency, budget, currency, fallback, continuity in product(
        TIERS,
        ((), ("Translate",), ("translate", "sum"), ("paint",)),
        ((), ("EU",)),
        ((), ("text/plain",), ("application/pdf", "image/png")),
        (None, *LATENCIES),
        (None, 0, 50, 500),
        (None, "EUR", "USD"),
        (True, False),
        (True, False),
    )
]


def fits(profile: TaskProfileResolved, name: str) -> bool:
    """Read off the three agents, not off the table."""
    skills = {one.lower() for one in profile.skills}
    price = {"cheap": 0, "wise": 500, "slow": 50}[name]
    pays = profile.budget_micros is None or (
        price == 0 or (price <= profile.budget_micros and profile.currency != "USD")
    )
    match name:
        case "cheap":
            takes = not skills and not profile.tags
            return takes and pays and profile.media_types in {(), ("text/plain",)}
        case "wise":
            return profile.tier == "specialist" and skills <= {"translate"} and pays
        case _:
            return skills <= {"translate", "sum"} and pays


def rank(profile: TaskProfileResolved, held: str | None) -> list[str]:
    """Those that fit, the best first."""
    found = [name for name in ("cheap", "slow", "wise") if fits(profile, name)]  # by price
    quick = {"interactive": "wise", "background": "slow"}.get(profile.latency or "")
    found.sort(key=lambda name: name != quick)
    found.sort(key=lambda name: not (profile.continuity and name == held))
    return found


@pytest.mark.parametrize("held", [None, "wise", "slow", "gone"])
@pytest.mark.parametrize("count", [3, 1, 0])
def test_every_combination_of_a_profile(count: int, held: str | None) -> None:
    seen = set[str]()
    for profile in PROFILES:
        offers = THREE[:count]
        route = choose(profile, offers, held)
        wanted = [name for name in rank(profile, held) if name in {one.agent for one in offers}]
        assert [one.peer for one in route.candidates] == wanted, profile
        assert {one.peer for one in route.excluded} == {one.agent for one in offers} - {*wanted}
        assert route.others == (tuple(wanted[1:]) if profile.fallback else ())
        first, *rest = route.list_facts()
        assert first is profile
        seen |= {str(first.type), *(str(one.type) for one in rest)}
        if not wanted:
            (blocked,) = rest
            assert isinstance(blocked, RoutingNotPossible)
            assert (blocked.reason == "no_peer") is not bool(offers)
            continue
        decided, resolved = rest[-1], rest[0]
        assert isinstance(decided, RoutingDecided)
        assert (decided.peer, decided.candidates) == (wanted[0], len(wanted))
        kept = profile.continuity and held == wanted[0]
        alone = "only_candidate" if len(wanted) == 1 else "best_score"
        assert decided.reason == ("continuity" if kept else alone)
        kind = SingleCandidate if len(wanted) == 1 else CandidatesResolved
        assert isinstance(resolved, kind)
    assert EventType.ROUTING_NOT_POSSIBLE in seen
    assert (EventType.ROUTING_CANDIDATES_RESOLVED in seen) is (count > 1)
    assert (EventType.ROUTING_SINGLE_CANDIDATE in seen) is (count > 0)


@pytest.mark.parametrize(
    ("changed", "why", "ref"),
    [
        ({"card_hash": None}, "unreachable", "card"),
        ({"tiers": frozenset({"specialist"})}, "tier", "standard"),
        ({"skills": NONE}, "skill", "translate"),
        ({"tags": NONE}, "tag", "eu"),
        ({"media_types": frozenset({"image/png"})}, "media_type", "text/plain"),
        ({"lacks": "urn:x"}, "protocol", "urn:x"),
        ({"denied_by": "no-pay"}, "policy", "no-pay"),
        ({"constraint": "agents"}, "constraint", "agents"),
        ({"price_micros": 901}, "budget", "901 EUR"),
        ({"currency": "USD"}, "budget", "50 USD"),
        ({"paused": "paused"}, "paused", "paused"),
        ({"paused": "being drained", "rests": True}, "paused", "being drained"),
        ({"over_limit": "quota"}, "quota", "quota"),
        ({"over_limit": "rate_limit"}, "rate_limit", "rate_limit"),
        ({"rests": True}, "breaker_open", "breaker"),
    ],
)
def test_each_row_speaks_against_an_agent_by_its_name(
    changed: dict[str, object], why: str, ref: str
) -> None:
    profile = TaskProfileResolved(
        "standard",
        "caller",
        ("translate",),
        ("eu",),
        ("text/plain",),
        budget_micros=900,
        currency="EUR",
    )
    assert choose(profile, [SLOW]).agent == "slow"
    worse = replace(SLOW, **changed)  # type: ignore[arg-type]  # members of the table above
    (excluded,) = choose(profile, [worse]).excluded
    assert (excluded.peer, excluded.why, excluded.ref) == ("slow", why, ref)
    assert choose(profile, [worse, replace(SLOW, agent="other")]).agent == "other"


def test_rows_of_the_table_are_all_shown_above() -> None:
    assert [why for why, _ in ROWS] == [
        "unreachable",
        "tier",
        "skill",
        "tag",
        "media_type",
        "protocol",
        "policy",
        "constraint",
        "budget",
        "paused",
        "quota",
        "rate_limit",
        "breaker_open",
    ]


@pytest.mark.parametrize(
    ("tags", "tiers"),
    [
        ((), {"standard"}),
        (("eu",), {"standard"}),
        (("standard",), {"standard"}),
        (("specialist",), {"specialist"}),
        (("standard", "specialist"), {"standard", "specialist"}),
    ],
)
def test_tiers_of_an_agent_are_tags_of_the_operator(tags: tuple[str, ...], tiers: set[str]) -> None:
    assert find_tiers(frozenset(tags)) == tiers


def test_failing_agent_is_chosen_last() -> None:
    assert choose(DEFAULT, [replace(CHEAP, falters=True), replace(SLOW, agent="b")]).agent == "b"
    assert choose(DEFAULT, [replace(CHEAP, falters=True)]).agent == "cheap"


def test_prices_of_several_currencies_are_not_compared() -> None:
    dollars = replace(SLOW, agent="dollars", price_micros=1, currency="USD")
    assert choose(DEFAULT, [SLOW, dollars]).agent == "slow"
    assert choose(DEFAULT, [SLOW, replace(dollars, currency="EUR")]).agent == "dollars"


@pytest.mark.parametrize(
    ("wanted", "offered", "meet"),
    [
        ("text/plain", "text/plain; charset=utf-8", True),
        ("TEXT/Plain", "text/plain", True),
        ("text/plain", "text", True),
        ("text/*", "text/html", True),
        ("*/*", "image/png", True),
        ("image/png", "*/*", True),
        ("image/png", "text", False),
        ("application/json", "data", True),
        ("application/json", "text/plain", False),
    ],
)
def test_media_types_meet(wanted: str, offered: str, meet: bool) -> None:  # noqa: FBT001  a row of the table
    profile = replace(DEFAULT, media_types=(wanted,))
    route = choose(profile, [replace(CHEAP, media_types=frozenset({offered}))])
    assert (route.agent is not None) is meet


def test_facts_of_a_crowd_name_some_and_count_the_rest() -> None:
    crowd = [replace(CHEAP, agent=f"a{number}") for number in range(MOST_NAMED + 3)]
    crowd += [replace(CHEAP, agent=f"b{number}", rests=True) for number in range(MOST_NAMED + 2)]
    _, resolved, decided = choose(DEFAULT, crowd).list_facts()
    assert isinstance(resolved, CandidatesResolved)
    assert (len(resolved.candidates), len(resolved.excluded)) == (MOST_NAMED, MOST_NAMED)
    assert resolved.unnamed == 5
    assert isinstance(decided, RoutingDecided)
    assert decided.candidates == MOST_NAMED + 3


offers = st.builds(
    AgentOffer,
    st.text("abcdef", min_size=1, max_size=3),
    st.frozensets(st.sampled_from(TIERS), min_size=1),
    st.frozensets(st.sampled_from(["eu", "background"])),
    st.frozensets(st.sampled_from(["translate", "sum"])),
    st.frozensets(st.sampled_from(["text/plain", "image/png"])),
    st.none() | st.just("hash"),
    streams=st.booleans(),
    price_micros=st.none() | st.integers(0, 1000),
    currency=st.sampled_from(["EUR", "USD"]),
    denied_by=st.none() | st.just("rule"),
    over_limit=st.sampled_from([None, "quota", "rate_limit"]),
    rests=st.booleans(),
    falters=st.booleans(),
)
crowds = st.lists(offers, max_size=6, unique_by=lambda one: one.agent)


@given(st.sampled_from(PROFILES), crowds, st.none() | st.text("abcdef", max_size=2), st.data())
def test_choice_is_total_stable_and_honest(
    profile: TaskProfileResolved, crowd: list[AgentOffer], held: str | None, data: st.DataObject
) -> None:
    route = choose(profile, crowd, held)
    named = [one.peer for one in route.candidates] + [one.peer for one in route.excluded]
    assert sorted(named) == sorted(one.agent for one in crowd), "each agent stands in it once"
    assert route == choose(profile, list(crowd), held)
    if route.agent is None:
        return
    scores = [one.score for one in route.candidates]
    assert scores == sorted(scores, reverse=True)
    gone = data.draw(st.sampled_from([one.peer for one in route.excluded] or [route.agent]))
    less = choose(profile, [one for one in crowd if one.agent != gone], held)
    if gone != route.agent:
        assert less.agent == route.agent, "who does not fit changes nothing"
    elif route.others:
        assert less.agent == route.others[0], "who takes over is who would have been chosen without"


@pytest.mark.requirement("TR-12")
@pytest.mark.parametrize(
    ("said", "field"),
    [
        ("expert", "at"),
        (7, "at"),
        ({"tier": "expert"}, "at.tier"),
        ({"tier": None}, "at.tier"),
        ({"skils": []}, "at.skils"),
        ({"skills": "x"}, "at.skills"),
        ({"skills": [""]}, "at.skills"),
        ({"tags": ["x"] * 17}, "at.tags"),
        ({"mediaTypes": [1]}, "at.mediaTypes"),
        ({"latency": "fast"}, "at.latency"),
        ({"budgetMicros": -1}, "at.budgetMicros"),
        ({"budgetMicros": True}, "at.budgetMicros"),
        ({"currency": ""}, "at.currency"),
        ({"fallback": "no"}, "at.fallback"),
        ({"continuity": 1}, "at.continuity"),
    ],
)
def test_profile_that_cannot_be_read_is_refused_by_its_field(said: object, field: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        read_profile(said, "at")  # type: ignore[arg-type]  # JSON of a caller
    assert refused.value.field == field


def test_profile_is_read_as_it_is_written() -> None:
    assert read_profile("specialist", "at") == TaskProfileResolved("specialist", "caller")
    assert read_profile({}, "at") == replace(DEFAULT, source="caller")
    whole = read_profile(
        {
            "tier": "specialist",
            "skills": ["a", "a", "b"],
            "tags": ["t"],
            "mediaTypes": ["text/plain"],
            "latency": "background",
            "budgetMicros": 5,
            "currency": "EUR",
            "fallback": False,
            "continuity": False,
        },
        "at",
    )
    assert whole == TaskProfileResolved(
        "specialist",
        "caller",
        ("a", "b"),
        ("t",),
        ("text/plain",),
        "background",
        5,
        "EUR",
        False,
        False,
    )
    assert len(MEMBERS) == 9
