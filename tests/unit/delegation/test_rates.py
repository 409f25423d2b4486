"""Rates of runs, by a clock that the test sets."""

from __future__ import annotations

import pytest

from passerelle.delegation.runs.read_scheduler import (
    QUIET_BYTES,
    QUIET_EVENTS,
    CallerLoads,
    ReadRate,
)


def test_a_run_may_bring_a_second_at_once_and_then_its_rate() -> None:
    rate = ReadRate(events_per_s=10, bytes_per_s=1_000)
    rate.count(10, 0, now_s=100.0)
    assert rate.find_wait_s(100.0) <= 0
    rate.count(5, 0, now_s=100.0)
    assert rate.find_wait_s(100.0) == pytest.approx(0.5)
    assert rate.find_wait_s(100.5) == pytest.approx(0.0)
    rate.count(1, 0, now_s=100.5)
    assert rate.find_wait_s(100.5) == pytest.approx(0.1)


def test_bytes_are_waited_for_as_events_are_and_the_longer_wait_counts() -> None:
    rate = ReadRate(events_per_s=10, bytes_per_s=1_000)
    rate.count(1, 3_000, now_s=50.0)
    assert rate.find_wait_s(50.0) == pytest.approx(2.0)
    rate.count(60, 0, now_s=50.0)
    assert rate.find_wait_s(50.0) == pytest.approx(5.1)


def test_unused_read_rate_is_not_saved_up() -> None:
    rate = ReadRate(events_per_s=10, bytes_per_s=1_000)
    rate.count(1, 0, now_s=0.0)
    rate.count(20, 0, now_s=1_000.0)
    assert rate.find_wait_s(1_000.0) == pytest.approx(1.0)


@pytest.mark.parametrize("events", [1, 10, 100])
def test_read_rate_holds_over_a_long_time(events: int) -> None:
    rate, now_s, came = ReadRate(events_per_s=50, bytes_per_s=10**9), 0.0, 0
    while now_s < 100:
        rate.count(events, 0, now_s)
        came += events
        now_s += max(rate.find_wait_s(now_s), 0.0)
    assert 50 * 100 <= came <= 50 * 101 + events


def test_the_runs_of_a_caller_are_judged_by_what_they_bring_together() -> None:
    sums = CallerLoads()
    for _ in range(20):
        # Not much for one run.
        sums.count("alice", QUIET_EVENTS // 16, 100, now_s=7.0)
    sums.count("bob", QUIET_EVENTS, QUIET_BYTES, now_s=7.0)
    assert sums.is_heavy("alice", 7.0)
    assert not sums.is_heavy("bob", 7.0)
    assert not sums.is_heavy("carol", 7.0)
    sums.count("bob", 0, 1, now_s=7.0)
    assert sums.is_heavy("bob", 7.0)
    assert not sums.is_heavy("alice", 8.0)


def test_a_heavy_caller_is_heavy_however_many_others_there_are() -> None:
    sums = CallerLoads()
    sums.count("alice", QUIET_EVENTS * 2, 0, now_s=7.0)
    for number in range(5_000):
        sums.count(f"other {number}", 1, 1, now_s=7.0)
    assert sums.is_heavy("alice", 7.0)
    assert not sums.is_heavy("other 4999", 7.0)
    assert len(sums) <= 1_025


def test_a_light_caller_counts_for_a_while_after_a_request_or_an_event() -> None:
    sums = CallerLoads()
    sums.count("alice", QUIET_EVENTS * 20, 0, now_s=7.0)
    assert sums.has_no_light_callers("alice", 7.0)
    sums.note("alice", 7.5)
    assert sums.has_no_light_callers("bob", 7.5), "a request of who brings much asks for nothing"
    sums.note("bob", 8.0)
    assert not sums.has_no_light_callers("alice", 18.0)
    assert sums.has_no_light_callers("alice", 18.1)
    sums.count("carol", 1, 10, now_s=18.1)
    assert not sums.has_no_light_callers("alice", 18.1)
    assert sums.has_no_light_callers("carol", 18.1), "there is nobody else"
    sums.count("carol", QUIET_EVENTS * 2, 10, now_s=18.2)
    assert sums.has_no_light_callers("alice", 18.2), "carol brings much herself by now"
