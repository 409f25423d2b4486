"""The plan of deaths in the life of a question: every point in every run, every dialect in the whole of it."""

from __future__ import annotations

from random import Random

import pytest

from tests.chaos.approvals_pauses import read_pause
from tests.chaos.approvals_plan import (
    CONVERSED,
    DIALECTS,
    NOTIFIED,
    OWN,
    PLACES,
    WORDS,
    Death,
    Errand,
)
from tests.chaos.approvals_plan import plan as plan_all


def plan(draw: Random, *, whole: bool) -> list[Errand]:
    """The errands that people answer."""
    return [one for one in plan_all(draw, whole=whole) if not one.way]


def test_conversation_meets_every_death_that_it_can_by_every_way_in_the_whole_of_it() -> None:
    short = [one for one in plan_all(Random(1), whole=False) if one.way]
    assert [one.death for one in short] == list(CONVERSED)
    assert len({(one.way, one.streams) for one in short}) == 4
    whole = [one for one in plan_all(Random(1), whole=True) if one.way]
    assert len({(one.death, one.way, one.streams) for one in whole}) == 4 * len(CONVERSED)
    assert {one.dialect for one in whole} == {WORDS}
    labels = [one.label for one in plan_all(Random(1), whole=True)]
    assert len(labels) == len(set(labels))


def test_shortest_run_has_every_death_once_and_no_dialect_is_left_out() -> None:
    errands = plan(Random(1), whole=False)
    assert sorted(one.death for one in errands) == sorted(Death)
    assert set(PLACES) == set(Death)
    assert {one.dialect for one in errands} == set(DIALECTS)


def test_whole_run_has_every_death_in_every_dialect_that_knows_of_it() -> None:
    errands = plan(Random(1), whole=True)
    places = {(one.death, one.dialect) for one in errands}
    assert len(places) == len(errands) == len({one.label for one in errands})
    assert {(Death.AFTER_RESOLVE, dialect) for dialect in DIALECTS} <= places


@pytest.mark.parametrize("whole", [False, True])
def test_label_stands_in_what_each_dialect_asks(whole: bool) -> None:  # noqa: FBT001  a parameter of the test
    for errand in plan(Random(2), whole=whole):
        if errand.dialect != OWN:
            assert errand.label in str(read_pause(errand))


def test_what_has_to_be_waited_for_begins_first() -> None:
    deaths = [one.death for one in plan(Random(3), whole=True)]
    waits = [death in {*NOTIFIED, Death.AFTER_CLAIM, Death.BEFORE_ARRIVAL} for death in deaths]
    assert waits == sorted(waits, reverse=True)


def test_each_time_that_an_agent_asks_is_told_from_the_one_before() -> None:
    for errand in plan(Random(4), whole=True):
        if errand.dialect != OWN:
            assert read_pause(errand, 0) != read_pause(errand, 1)
