"""What follows from an answer of a webhook receiver, row by row, and what holds for every sequence of them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from passerelle.webhooks.retries import (
    FIRST_PAUSE_MS,
    LONGEST_MS,
    LONGEST_PAUSE_MS,
    MOST_REFUSALS,
    AddressBlocked,
    Delivered,
    FailureStreak,
    GivenUp,
    Outcome,
    Postponed,
    Reaction,
    ReceiverAnswered,
    ReceiverUnreached,
    judge,
    pause_ms,
    postpone,
    read_reaction,
)

NOW = 1_700_000_000_000
STATUSES = st.integers(100, 599)
OUTCOMES: st.SearchStrategy[Outcome] = st.one_of(
    st.builds(ReceiverAnswered, STATUSES, st.integers(0, 2 * LONGEST_MS)),
    st.builds(ReceiverUnreached, st.sampled_from(["timeout", "dns", "tls", "connection"])),
    st.builds(AddressBlocked),
)


@pytest.mark.parametrize(
    ("statuses", "reaction"),
    [
        ((200, 201, 202, 204, 299), Reaction.TAKEN),
        ((410,), Reaction.GONE),
        ((400, 401, 403, 404, 405, 409, 413, 422, 451, 301, 302, 303, 307, 308), Reaction.REFUSED),
        ((408, 425, 429, 500, 502, 503, 504, 599, 100, 199), Reaction.BUSY),
    ],
)
def test_each_http_status_has_its_reaction(statuses: tuple[int, ...], reaction: Reaction) -> None:
    assert {read_reaction(ReceiverAnswered(status)) for status in statuses} == {reaction}


def test_silence_is_busy_and_a_refused_address_is_a_refusal() -> None:
    assert read_reaction(ReceiverUnreached("timeout")) is Reaction.BUSY
    assert read_reaction(AddressBlocked()) is Reaction.REFUSED


def test_third_refusal_in_a_row_gives_up_and_a_busy_answer_resets_the_count() -> None:
    streak = FailureStreak()
    for status in (404, 404, 503, 404, 404):
        verdict = judge(streak, ReceiverAnswered(status), NOW, 0.5)
        assert isinstance(verdict, Postponed)
        streak = verdict.streak
    last = judge(streak, ReceiverAnswered(403), NOW, 0.5)
    assert last == GivenUp(FailureStreak(6, NOW, MOST_REFUSALS, "http_403"))


def test_gone_ends_it_at_once() -> None:
    assert judge(FailureStreak(), ReceiverAnswered(410), NOW, 0.5) == GivenUp(
        FailureStreak(1, NOW, 0, "http_410")
    )


def test_pause_doubles_from_a_second_to_five_minutes_with_jitter_below_it() -> None:
    whole = [pause_ms(tries, 1.0) for tries in range(1, 12)]
    assert whole[:4] == [1_000, 2_000, 4_000, 8_000]
    assert whole[-1] == LONGEST_PAUSE_MS
    assert [pause_ms(tries, 0.0) for tries in range(1, 12)] == [one // 2 for one in whole]


def test_retry_after_makes_a_pause_longer_and_never_shorter() -> None:
    patient = judge(FailureStreak(), ReceiverAnswered(503, 60_000), NOW, 1.0)
    hasty = judge(FailureStreak(), ReceiverAnswered(503, 1), NOW, 1.0)
    assert isinstance(patient, Postponed)
    assert isinstance(hasty, Postponed)
    assert (patient.delay_ms, hasty.delay_ms) == (60_000, FIRST_PAUSE_MS)


def test_after_a_day_it_is_given_up_and_the_last_pause_does_not_reach_beyond_it() -> None:
    streak = FailureStreak(40, NOW, 0, "timeout")
    almost = judge(streak, ReceiverUnreached("timeout"), NOW + LONGEST_MS - 1_000, 1.0)
    assert isinstance(almost, Postponed)
    assert almost.delay_ms == 1_000
    assert isinstance(judge(streak, ReceiverUnreached("timeout"), NOW + LONGEST_MS, 1.0), GivenUp)


def test_delivery_that_was_not_sent_counts_as_time_and_not_as_an_attempt() -> None:
    first = postpone(FailureStreak(), 700, "breaker", NOW)
    assert first == Postponed(FailureStreak(0, NOW, 0, "breaker"), 700)
    kept = postpone(FailureStreak(3, NOW, 1, "http_500"), 700, "breaker", NOW + 5)
    assert kept == Postponed(FailureStreak(3, NOW, 1, "http_500"), 700)
    assert isinstance(postpone(kept.streak, 700, "breaker", NOW + LONGEST_MS), GivenUp)


@given(st.lists(st.tuples(OUTCOMES, st.integers(0, LONGEST_MS), st.floats(0, 1)), max_size=40))
def test_every_sequence_ends_or_goes_on_within_a_day(
    steps: list[tuple[Outcome, int, float]],
) -> None:
    streak, now_ms = FailureStreak(), NOW
    for outcome, pause, chance in steps:
        now_ms += pause
        verdict = judge(streak, outcome, now_ms, chance)
        if isinstance(verdict, GivenUp):
            assert verdict.streak.reason
            return
        if isinstance(verdict, Delivered):
            assert read_reaction(outcome) is Reaction.TAKEN
            streak = FailureStreak()
            continue
        assert 0 <= verdict.delay_ms <= LONGEST_MS
        assert now_ms + verdict.delay_ms <= verdict.streak.since_ms + LONGEST_MS
        assert verdict.streak.tries == streak.tries + 1
        assert verdict.streak.refusals < MOST_REFUSALS
        streak = verdict.streak
