"""Milliseconds and RFC 3339 text convert to each other."""

import re
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from passerelle.core.wire.times import format_ms, parse_ms

YEAR_1000, YEAR_9999 = -30_610_224_000_000, 253_402_300_799_999
MOMENTS = st.integers(YEAR_1000, YEAR_9999)


@pytest.mark.requirement("ENV-3")
@given(ms=MOMENTS)
def test_a_time_comes_back_to_the_millisecond(ms: int) -> None:
    assert parse_ms(format_ms(ms)) == ms


@pytest.mark.requirement("ENV-3")
@given(ms=MOMENTS)
def test_a_time_is_written_in_utc_with_three_digits(ms: int) -> None:
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", format_ms(ms), re.ASCII)


@given(one=MOMENTS, other=MOMENTS)
def test_texts_sort_as_their_times_do(one: int, other: int) -> None:
    assert (format_ms(one) < format_ms(other)) is (one < other)


@pytest.mark.parametrize(
    ("ms", "text"),
    [
        (0, "1970-01-01T00:00:00.000Z"),
        (-1, "1969-12-31T23:59:59.999Z"),
        (1_767_323_045_006, "2026-01-02T03:04:05.006Z"),
    ],
)
def test_known_times_read_as_they_should(ms: int, text: str) -> None:
    assert format_ms(ms) == text
    assert datetime.fromisoformat(text).astimezone(UTC).timestamp() * 1000 == pytest.approx(ms)


@pytest.mark.parametrize(
    "text",
    ["2026-01-02T04:04:05.006+01:00", "2026-01-02T03:04:05.006Z", "2026-01-01T22:04:05.006-05:00"],
)
def test_any_offset_names_the_same_moment(text: str) -> None:
    assert parse_ms(text) == 1_767_323_045_006


@pytest.mark.parametrize(
    "text", ["", "soon", "2026-13-01T00:00:00Z", "2026-01-02T03:04:05", "2026-01-02"]
)
def test_a_text_without_a_moment_or_an_offset_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        parse_ms(text)
