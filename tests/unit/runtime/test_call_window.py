"""The last hour of calls to agents, from counters without timestamps."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from passerelle.runtime.observability.call_window import HOUR_MS, CallWindow, find_quantile
from passerelle.runtime.observability.metrics import Metrics


@dataclass
class Hands:
    """A clock that is moved by hand."""

    at_ms: int = 1_000_000

    def now_ms(self) -> int:
        return self.at_ms


def open_window() -> tuple[CallWindow, Metrics, Hands, dict[str, str]]:
    metrics, clock, cards = Metrics(), Hands(), {"echo": "a"}
    window = CallWindow(metrics, clock, lambda: cards)
    window.look()
    return window, metrics, clock, cards


def test_calls_before_the_last_hour_do_not_count() -> None:
    window, metrics, clock, _ = open_window()
    for _ in range(3):
        metrics.count_peer_call("echo", "answered")
    metrics.count_peer_call("other", "unreached")
    assert window.report("echo").outcomes == {"answered": 3}
    for _ in range(70):
        clock.at_ms += 60_000
        window.look()
    metrics.count_peer_call("echo", "unknown")
    report = window.report("echo")
    assert report.outcomes == {"unknown": 1}
    assert clock.at_ms - HOUR_MS - 60_000 <= report.since_ms <= clock.at_ms - HOUR_MS
    assert window.report("nobody").outcomes == {}


def test_the_last_answer_and_the_last_failure_have_times() -> None:
    window, metrics, clock, _ = open_window()
    report = window.report("echo")
    assert (report.answered_ms, report.failed_ms, report.times) == (None, None, ())
    metrics.count_peer_call("echo", "refused")
    window.look()
    answered, clock.at_ms = clock.at_ms, clock.at_ms + 10_000
    for held in ("breaker", "limit", "absent"):
        metrics.count_peer_call("echo", held)
    metrics.count_peer_call("echo", "malformed")
    report = window.report("echo")
    assert (report.answered_ms, report.failed_ms) == (answered, clock.at_ms)


def test_a_card_that_changes_is_known_since_then() -> None:
    window, _, clock, cards = open_window()
    first = clock.at_ms
    clock.at_ms += 20_000
    window.look()
    assert window.find_card_since("echo") == first
    cards["echo"] = "b"
    window.look()
    assert window.find_card_since("echo") == clock.at_ms
    assert window.find_card_since("other") is None


def test_times_of_messages_alone_are_weighed() -> None:
    window, metrics, clock, _ = open_window()
    for seconds in (0.002, 0.002, 0.002, 0.4):
        metrics.count_request("echo", "SendMessage", "ok", seconds)
    for _ in range(100):
        metrics.count_request("echo", "GetTask", "ok", 60.0)
        metrics.count_request("other", "SendMessage", "ok", 60.0)
    times = window.report("echo").times
    assert [window.find_quantile(times, percent) for percent in (50, 95)] == [0.0025, 0.5]
    for _ in range(62):
        clock.at_ms += 60_000
        window.look()
    assert window.find_quantile(window.report("echo").times, 50) is None


@given(st.lists(st.integers(0, 50), min_size=1, max_size=8), st.sampled_from([1, 50, 95, 100]))
def test_a_quantile_covers_the_given_percentage(counts: list[int], percent: int) -> None:
    bounds = [float(place) for place in range(len(counts) - 1)]
    found = find_quantile(counts, bounds, percent)
    if not sum(counts):
        assert found is None
        return
    place = len(counts) - 1 if found is None else bounds.index(found)
    assert sum(counts[: place + 1]) * 100 >= sum(counts) * percent
    assert sum(counts[:place]) * 100 < sum(counts) * percent


@pytest.mark.anyio
async def test_cards_are_read_while_the_call_window_is_followed() -> None:
    window, _, clock, _ = open_window()
    async with window.follow():
        assert window.find_card_since("echo") == clock.at_ms
