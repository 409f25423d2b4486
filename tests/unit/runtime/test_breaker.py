"""The breaker as a table: what closes, what opens, and for how long."""

from __future__ import annotations

from typing import get_args

from hypothesis import given
from hypothesis import strategies as st

from passerelle.runtime.common.breaker import (
    FAILURES,
    MAX_PAUSE_MS,
    PAUSE_MS,
    SAMPLE,
    TRIAL_MS,
    WINDOW_MS,
    Breaker,
    Signal,
    step,
)

SIGNALS: st.SearchStrategy[Signal] = st.sampled_from(get_args(Signal))


FAILED: list[Signal] = ["failed"]


def play(*signals: Signal, breaker: Breaker | None = None, at_ms: int = 0) -> Breaker:
    breaker = breaker or Breaker()
    for signal in signals:
        breaker = step(breaker, signal, at_ms)
    return breaker


def test_five_failures_within_the_window_open_it() -> None:
    assert play(*FAILED * (FAILURES - 1)).mode == "closed"
    opened = play(*FAILED * FAILURES)
    assert opened.mode == "open"
    assert not opened.admits(PAUSE_MS - 1)
    assert opened.admits(PAUSE_MS)


def test_failures_far_apart_do_not_open_it() -> None:
    breaker = Breaker()
    for number in range(FAILURES * 2):
        breaker = play("succeeded", "failed", breaker=breaker, at_ms=number * WINDOW_MS)
    assert breaker.mode == "closed"


def test_more_than_half_of_the_last_calls_failing_opens_it_however_slowly() -> None:
    breaker = Breaker()
    for number in range(SAMPLE):
        breaker = play("failed", breaker=breaker, at_ms=number * WINDOW_MS)
    assert breaker.mode == "open"


def test_success_closes_it_after_a_trial_only() -> None:
    opened = play(*FAILED * FAILURES)
    assert play("succeeded", breaker=opened).mode == "open"
    asked = play("asked", breaker=opened, at_ms=PAUSE_MS)
    assert asked.mode == "trial"
    assert not asked.admits(PAUSE_MS)
    assert play("succeeded", breaker=asked, at_ms=PAUSE_MS) == Breaker()


def test_answer_to_a_question_closes_it_at_once() -> None:
    assert play("answered", breaker=play(*FAILED * FAILURES)) == Breaker()


def test_pause_doubles_with_each_failed_trial_up_to_a_minute() -> None:
    breaker, now_ms, pauses = play(*FAILED * FAILURES), 0, list[int]()
    for _ in range(6):
        pauses.append(breaker.until_ms - now_ms)
        now_ms = breaker.until_ms
        breaker = play("asked", "failed", breaker=breaker, at_ms=now_ms)
    assert pauses == [5_000, 10_000, 20_000, 40_000, 60_000, 60_000]


def test_wait_is_given_in_whole_seconds() -> None:
    assert play(*FAILED * FAILURES).wait_s(1) == 5
    assert play(*FAILED * FAILURES).wait_s(PAUSE_MS) == 1


@given(st.lists(st.tuples(SIGNALS, st.integers(0, 30_000)), max_size=60))
def test_no_history_leaves_it_shut_for_longer_than_the_longest_pause(
    history: list[tuple[Signal, int]],
) -> None:
    breaker, now_ms = Breaker(), 0
    for signal, passed_ms in history:
        now_ms += passed_ms
        breaker = step(breaker, signal, now_ms)
        assert breaker.until_ms <= now_ms + MAX_PAUSE_MS
        assert breaker.admits(now_ms + MAX_PAUSE_MS)
        assert len(breaker.sample) <= SAMPLE
        assert len(breaker.failures) < FAILURES


def test_a_failure_that_left_before_it_opened_does_not_open_it_for_longer() -> None:
    opened = play(*FAILED * FAILURES)
    assert play("failed", breaker=opened, at_ms=1_000).wait_ms(1_000) == PAUSE_MS - 1_000


def test_other_calls_wait_for_a_trial_at_most_its_time() -> None:
    trial = play("asked", breaker=play(*FAILED * FAILURES), at_ms=PAUSE_MS)
    assert [trial.wait_ms(PAUSE_MS + after) for after in (0, 5_000, TRIAL_MS)] == [
        15_000,
        10_000,
        0,
    ]
    assert play("answered", breaker=trial).wait_ms(PAUSE_MS) == 0
