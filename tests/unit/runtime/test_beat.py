"""Loops with an interval share the moments at which they wake up."""

from __future__ import annotations

import math

from hypothesis import given
from hypothesis import strategies as st

from passerelle.runtime.common.beat import until_beat


@given(st.floats(0, 1e7), st.sampled_from([0.01, 0.625, 1.0, 2.0]))
def test_pause_ends_on_a_beat_and_is_neither_nothing_nor_two_beats(
    now_s: float, beat_s: float
) -> None:
    pause_s = until_beat(now_s, beat_s)
    assert 0.099 * beat_s <= pause_s <= 1.101 * beat_s
    beats = (now_s + pause_s) / beat_s
    assert math.isclose(beats, round(beats), abs_tol=1e-6 * max(1.0, now_s))


def test_timer_that_fires_early_does_not_end_the_same_beat_twice() -> None:
    assert math.isclose(until_beat(6.999), 1.001)
    assert math.isclose(until_beat(7.0), 1.0)
    assert math.isclose(until_beat(7.001), 0.999)
