"""How often a context with waiting turns is checked."""

from passerelle.delegation.runs.queue_lines import find_turn_pause_s


def test_context_that_is_at_work_for_long_is_looked_at_less_and_less_often() -> None:
    pauses = [find_turn_pause_s(looks) for looks in range(1, 500)]
    assert set(pauses[:19]) == {0.5}, "the first ten seconds"
    assert pauses == sorted(pauses)
    assert (pauses[-1], max(pauses)) == (15.0, 15.0)
    # What comes in between is noticed within a share of the time that it was waited for.
    waited_s = 0.0
    for pause_s in pauses:
        assert pause_s <= max(0.5, waited_s / 5)
        waited_s += pause_s
