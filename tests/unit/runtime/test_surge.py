"""Many arrivals at once are a burst, one after another are not."""

from __future__ import annotations

from passerelle.runtime.common.deferred_queue import BurstDetector


def test_arrivals_above_the_bound_are_a_burst() -> None:
    surge = BurstDetector(most=3, within_s=1.0)
    assert [surge.join(0.2 * number) for number in range(5)] == [False, False, False, True, True]


def test_an_arrival_after_a_burst_counts_alone() -> None:
    surge = BurstDetector(most=3, within_s=1.0)
    for _ in range(5):
        surge.join(10.0)
    assert [surge.join(11.0 + number) for number in range(4)] == [False] * 4


def test_many_one_after_another_are_no_surge() -> None:
    surge = BurstDetector(most=3, within_s=1.0)
    assert not any(surge.join(0.4 * number) for number in range(50))
