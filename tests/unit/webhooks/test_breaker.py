"""The breaker of an origin: opens when nobody is there, and lets one find out."""

from __future__ import annotations

from passerelle.webhooks.breaker import (
    CLOSED,
    FIRST_OPEN_MS,
    LONGEST_OPEN_MS,
    THRESHOLD,
    ReceiverBreaker,
    begin,
    end,
    wait_ms,
)

NOW = 1_000_000


def fail(breaker: ReceiverBreaker, now_ms: int, times: int = 1) -> ReceiverBreaker:
    for _ in range(times):
        breaker = end(begin(breaker, now_ms, 10_000), now_ms, reached=False)
    return breaker


def test_opens_after_five_failures_in_a_row_and_not_before() -> None:
    almost = fail(CLOSED, NOW, THRESHOLD - 1)
    assert wait_ms(almost, NOW) == 0
    assert wait_ms(fail(almost, NOW), NOW) == FIRST_OPEN_MS


def test_success_between_starts_the_count_anew() -> None:
    breaker = end(fail(CLOSED, NOW, THRESHOLD - 1), NOW, reached=True)
    assert breaker == CLOSED
    assert wait_ms(fail(breaker, NOW, THRESHOLD - 1), NOW) == 0


def test_one_tries_when_the_time_has_passed_and_the_others_wait_for_it() -> None:
    breaker = fail(CLOSED, NOW, THRESHOLD)
    later = NOW + FIRST_OPEN_MS
    assert wait_ms(breaker, later) == 0
    trying = begin(breaker, later, 10_000)
    assert wait_ms(trying, later) == 10_000
    assert end(trying, later + 5, reached=True) == CLOSED


def test_one_that_tries_and_never_ends_is_not_waited_for_for_ever() -> None:
    trying = begin(fail(CLOSED, NOW, THRESHOLD), NOW + FIRST_OPEN_MS, 10_000)
    assert wait_ms(trying, NOW + FIRST_OPEN_MS + 10_000) == 0


def test_each_failed_try_opens_it_for_twice_as_long_up_to_a_minute() -> None:
    breaker, now_ms, pauses = fail(CLOSED, NOW, THRESHOLD), NOW, list[int]()
    for _ in range(6):
        pauses.append(wait_ms(breaker, now_ms))
        now_ms += pauses[-1]
        breaker = fail(breaker, now_ms)
    assert pauses == [5_000, 10_000, 20_000, 40_000, LONGEST_OPEN_MS, LONGEST_OPEN_MS]


def test_failure_that_left_before_it_opened_does_not_open_it_for_longer() -> None:
    breaker = fail(CLOSED, NOW, THRESHOLD)
    late = end(breaker, NOW + 1_000, reached=False)
    assert wait_ms(late, NOW + 1_000) == FIRST_OPEN_MS - 1_000
