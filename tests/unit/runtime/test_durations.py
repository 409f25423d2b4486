"""Durations are read back as written, and other text is refused."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from passerelle.runtime.common.durations import LONGEST_MS, Duration, parse_duration


@given(st.integers(min_value=0, max_value=LONGEST_MS))
def test_text_of_a_duration_reads_back_as_the_same_duration(ms: int) -> None:
    assert parse_duration(str(Duration(ms))) == Duration(ms)


@pytest.mark.parametrize(
    ("text", "ms"),
    [("250ms", 250), ("10s", 10_000), ("2m", 120_000), ("1h30m", 5_400_000), ("1d", 86_400_000)],
)
def test_each_unit_has_its_size(text: str, ms: int) -> None:
    assert parse_duration(text).ms == ms


@pytest.mark.parametrize(
    "text", ["", "30", "1.5s", "-1s", "10 s", "1w", "s", "1s1m", "1s2s", "400d", "10S", "\u0661s"]
)
def test_anything_else_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"is a duration|names each unit once|is at most"):
        parse_duration(text)


def test_seconds_keep_the_fraction() -> None:
    assert Duration(1_500).seconds == 1.5
