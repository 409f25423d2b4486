"""The plan of deaths in the life of a question: every point in every run, every dialect in the whole of it."""

from __future__ import annotations

from random import Random

import pytest

from tests.chaos.approvals_plan import DIALECTS, OWN, PLACES, Death, plan, read_pause


def test_shortest_run_has_every_death_once_and_no_dialect_is_left_out() -> None:
    errands = plan(Random(1), whole=False)
    assert [one.death for one in errands] == list(Death)
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
