"""How long an append may wait to share a batch follows from how long answers take."""

import pytest

from passerelle.runtime.records.batch_window import BatchWindow


def note_all(took_ms: int, times: int = 200) -> BatchWindow:
    window = BatchWindow()
    for _ in range(times):
        window.note(took_ms)
    return window


@pytest.mark.parametrize(
    ("took_ms", "within_s"),
    [(0, 0.0), (2, 0.0005), (8, 0.002), (16, 0.004), (60_000, 0.004)],
)
def test_batch_window_is_a_small_and_bounded_part_of_the_answer_time(
    took_ms: int, within_s: float
) -> None:
    assert note_all(took_ms).within_s == pytest.approx(within_s)


def test_nothing_waits_before_the_first_answer() -> None:
    assert BatchWindow().within_s == 0.0


def test_a_clock_that_was_set_back_causes_no_wait() -> None:
    assert note_all(-5_000).within_s == 0.0


def test_one_slow_answer_among_fast_ones_is_soon_forgotten() -> None:
    window = note_all(1)
    window.note(3_600_000)
    assert window.within_s == pytest.approx(0.001, abs=0.0001)
    window.note(1)
    assert window.within_s < 0.001
