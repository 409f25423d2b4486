"""Each requirement of the kit has a test here, and those that the kit does not test are listed with their tests."""

from __future__ import annotations

from tests.conformance.registry import collect_marks, read_requirements, read_untested

REQUIREMENTS = read_requirements()
UNTESTED = read_untested()
MARKS = collect_marks()


def test_every_mark_names_a_requirement_of_the_kit() -> None:
    assert not MARKS.keys() - REQUIREMENTS.keys()


def test_every_requirement_that_the_kit_tests_has_a_test_here() -> None:
    wanted = {name for name, row in REQUIREMENTS.items() if not (row.untested or row.vacuous)}
    assert not wanted - MARKS.keys()


def test_requirement_with_nothing_to_test_has_no_test() -> None:
    assert not {name for name, row in REQUIREMENTS.items() if row.vacuous} & MARKS.keys()


def test_list_of_the_untested_is_complete() -> None:
    untested = {name for name, row in REQUIREMENTS.items() if row.untested}
    assert len(untested) == 25
    assert UNTESTED.keys() == untested


def test_list_of_the_untested_and_the_marks_of_tests_agree() -> None:
    for name, row in UNTESTED.items():
        assert set(row.tests) == MARKS.get(name, set()), name
        assert row.tests or row.missing, f"{name}: neither a test nor a reason why it is missing"
