"""Tables on a terminal: no row is too wide, ids stay distinguishable, times are ages."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from passerelle.cli.verbs.table_layout import cut, fit_table, format_age, shorten_ids
from passerelle.core.wire.times import format_ms, parse_ms

NOW = parse_ms("2026-11-28T12:00:00.000Z")
ALPHABET = "0123456789abcdefghjkmnpqrstvwxyz"
IDS = st.text(ALPHABET, min_size=28, max_size=28).map(lambda body: f"task_{body}")


@pytest.mark.parametrize(
    ("before_s", "age"),
    [
        (0, "0s"),
        (59, "59s"),
        (60, "1m"),
        (150, "2m"),
        (3_600, "1h"),
        (86_399, "23h"),
        (86_400 * 9, "9d"),
        (-150, "in 2m"),
    ],
)
def test_age_has_one_unit(before_s: int, age: str) -> None:
    assert format_age(format_ms(NOW - before_s * 1000), NOW) == age


def test_text_that_is_no_time_is_shown_unchanged() -> None:
    assert format_age("soon", NOW) == "soon"


@given(st.lists(IDS, min_size=1, max_size=40))
def test_short_ids_are_unique_suffixes(ids: list[str]) -> None:
    short = shorten_ids(ids)
    assert all(one.endswith(short[one]) and len(short[one]) >= 8 for one in ids)
    assert len(set(short.values())) == len(set(ids))


@given(
    st.lists(
        st.tuples(IDS, st.sampled_from(["running", "waiting_input"]), st.text(max_size=120)),
        min_size=1,
        max_size=20,
    ),
    st.integers(60, 200),
)
def test_no_row_is_wider_than_the_screen(rows: list[tuple[str, str, str]], width: int) -> None:
    listed = [(task, status, "2026-11-28T11:58:00.000Z", title) for task, status, title in rows]
    fitted = fit_table(("TASK", "STATUS", "SINCE", "TITLE"), listed, width, NOW)
    widths = [max(map(len, column)) for column in zip(*fitted, strict=True)]
    assert sum(widths) + 2 * (len(widths) - 1) <= width
    assert [row[2] for row in fitted[1:]] == ["2m"] * len(rows)
    assert [row[1] for row in fitted[1:]] == [status for _, status, _ in rows]


def test_ids_are_whole_where_there_is_room() -> None:
    task = "task_0301m8h5rvb1mwfft3km7sge0v01"
    (_, roomy) = fit_table(("TASK", "STATUS"), [(task, "running")], 80, NOW)
    (_, narrow) = fit_table(("TASK", "STATUS"), [(task, "running")], 40, NOW)
    assert (roomy, narrow) == ([task, "running"], [task[-8:], "running"])


def test_cut_text_ends_with_an_ellipsis() -> None:
    assert cut("completed", 5) == "comp…"
    assert cut("done", 4) == "done"
