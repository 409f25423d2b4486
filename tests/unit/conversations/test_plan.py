"""The plan of conversations has every possible pair, and is the same on every run."""

from __future__ import annotations

from dataclasses import asdict
from itertools import combinations, product

from tests.conversations.axes import AXES, BROKEN, Case, is_possible, plan


def _list_pairs(case: Case) -> set[tuple[tuple[str, str], ...]]:
    return set(combinations(asdict(case).items(), 2))


def _is_possible_somewhere(pair: tuple[tuple[str, str], ...]) -> bool:
    """Whether any conversation has both values: every combination of the axes that rule each other out is tried."""
    wanted = dict(pair)
    bound = ("agent", "stores", "asks", "answer", "binding", "version", "event", "stance")
    free = [(wanted[name],) if name in wanted else AXES[name] for name in bound]
    rest = {name: wanted.get(name, values[0]) for name, values in AXES.items() if name not in bound}
    found = (Case(**rest, **dict(zip(bound, values, strict=True))) for values in product(*free))
    return any(is_possible(case) for case in found)


def test_every_pair_that_is_possible_is_played() -> None:
    played: set[tuple[tuple[str, str], ...]] = set()
    for case in plan(whole=False):
        played |= _list_pairs(case)
    missed = [
        ((one, value), (other, second))
        for one, other in combinations(AXES, 2)
        for value, second in product(AXES[one], AXES[other])
        if ((one, value), (other, second)) not in played
    ]
    assert not [pair for pair in missed if _is_possible_somewhere(pair)]


def test_cases_that_failed_before_are_in_the_short_plan() -> None:
    cases = [asdict(case).items() for case in plan(whole=False)]
    for wanted in BROKEN:
        assert any(wanted.items() <= case for case in cases), wanted


def test_plan_is_the_same_each_time_and_has_only_what_is_possible() -> None:
    cases = plan(whole=True)
    assert cases == plan(whole=True)
    assert all(is_possible(case) for case in cases)
    assert set(plan(whole=False)) <= set(cases)
