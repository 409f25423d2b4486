"""Pauses double up to a bound, in the unit of their bounds."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from passerelle.core.back_off import find_pause


def test_pauses_double_from_the_first_failure_up_to_the_longest() -> None:
    assert [find_pause(100, 1_000, failures) for failures in range(7)] == [
        100,
        100,
        200,
        400,
        800,
        1_000,
        1_000,
    ]
    assert [find_pause(0.5, 1.5, failures) for failures in (1, 2, 3)] == [0.5, 1.0, 1.5]


@given(st.integers(1, 10**6), st.integers(0, 10**9), st.integers(0, 10**9))
def test_no_number_of_failures_goes_below_the_first_pause_or_beyond_the_longest(
    first: int, further: int, failures: int
) -> None:
    longest = first + further
    pause = find_pause(first, longest, failures)
    assert first <= pause <= longest
    assert pause <= find_pause(first, longest, failures + 1)
