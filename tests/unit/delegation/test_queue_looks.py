"""How often a queued task is checked if no event wakes it."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from passerelle.delegation.runs.holds import (
    FIRST_LOOK_MS,
    LONGEST_LOOK_MS,
    LONGEST_REST_MS,
    find_look_ms,
)

HOUR_MS = 3_600_000
WAITED = st.integers(-1_000, HOUR_MS)


@given(WAITED)
def test_task_that_may_be_taken_is_looked_at_as_often_as_it_has_waited(waited_ms: int) -> None:
    pause_ms = find_look_ms(waited_ms, is_paused=False)
    assert FIRST_LOOK_MS <= pause_ms <= LONGEST_LOOK_MS
    if FIRST_LOOK_MS <= waited_ms <= LONGEST_LOOK_MS:
        assert pause_ms == waited_ms


@given(WAITED, st.integers(0, HOUR_MS))
def test_longer_wait_never_means_an_earlier_look(waited_ms: int, further_ms: int) -> None:
    for is_paused in (False, True):
        now = find_look_ms(waited_ms, is_paused=is_paused)
        assert now <= find_look_ms(waited_ms + further_ms, is_paused=is_paused)


@given(st.integers(0, 100_000))
def test_looks_at_a_queue_are_bounded_whatever_its_length(waiting: int) -> None:
    pause_ms = find_look_ms(HOUR_MS, waiting, is_paused=False)
    assert LONGEST_LOOK_MS <= pause_ms <= LONGEST_REST_MS
    if waiting <= LONGEST_REST_MS // 30:
        assert waiting * 1000 / pause_ms <= 34
    if waiting <= LONGEST_LOOK_MS // 30:
        assert pause_ms == LONGEST_LOOK_MS


@given(WAITED)
def test_queue_of_a_paused_agent_is_looked_at_no_more_often(waited_ms: int) -> None:
    paused_ms = find_look_ms(waited_ms, is_paused=True)
    assert find_look_ms(waited_ms, is_paused=False) <= paused_ms <= LONGEST_REST_MS


def count_looks(wait_ms: int, *, is_paused: bool) -> int:
    """Looks within a wait."""
    at_ms, looks = FIRST_LOOK_MS, 0
    while at_ms < wait_ms:
        looks += 1
        at_ms += find_look_ms(at_ms, is_paused=is_paused)
    return looks


def test_an_hour_of_a_pause_is_a_few_looks() -> None:
    assert count_looks(HOUR_MS, is_paused=True) <= 9
    assert count_looks(HOUR_MS, is_paused=False) >= 30
