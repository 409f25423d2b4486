"""The contents of a row of the benchmark, and the verdict of a run. No speed is asserted anywhere."""

import pytest

from bench.rows import COLUMNS, Bound, Row, Spread, summarize


@pytest.mark.parametrize(
    ("bound", "held", "missed"),
    [
        (Bound("at most", 0.25), 0.25, 0.2501),
        (Bound("at least", 0.85), 0.85, 0.8499),
        (Bound("exactly", 2), 2.0, 2.001),
    ],
)
def test_a_bound_holds_up_to_its_limit(bound: Bound, held: float, missed: float) -> None:
    assert bound.holds(held)
    assert not bound.holds(missed)


def test_the_middle_of_the_rounds_is_judged_and_not_the_best() -> None:
    row = Row("a ratio", Spread.of([0.1, 0.3, 0.4]), "ratio", Bound("at most", 0.25))
    assert row.verdict == "missed"
    assert row.render().endswith("missed (at most 0.25)")


def test_a_row_without_a_measure_is_not_measured_whatever_its_bound() -> None:
    row = Row("a rival", None, "ratio", Bound("at most", 1.0))
    assert row.verdict == "not measured"
    assert row.render().endswith("not measured (at most 1)")


def test_values_are_aligned_with_the_header() -> None:
    row = Row("a count", Spread.of([1.0, 2.0, 30.0]), "1/s").render()
    assert row.index("1/s") == COLUMNS.index("unit")
    assert row[COLUMNS.index("max") - 1 : COLUMNS.index("max") + 3] == "30.0"


@pytest.mark.parametrize(
    ("value", "shown"), [(0.0, "0"), (0.01234, "0.0123"), (-1.5, "-1.50"), (12345.6, "12346")]
)
def test_three_digits_are_shown(value: float, shown: str) -> None:
    assert f" {shown} " in Row("a value", Spread.of([value]), "ms").render()


def test_the_last_line_counts_every_verdict() -> None:
    rows = [
        Row("held", Spread.of([1.0]), "", Bound("at most", 1.0)),
        Row("missed", Spread.of([2.0]), "", Bound("at most", 1.0)),
        Row("told", Spread.of([2.0])),
        Row("absent", None),
    ]
    assert summarize(rows, 61.4) == (
        "bench: 4 rows, 1 held, 1 missed, 1 no bound, 1 not measured, 61 s"
    )
