"""A caller has a limited number of open streams."""

from __future__ import annotations

import pytest

from passerelle.core.errors import Limited
from passerelle.runtime.limits.gate import StreamSeats


@pytest.mark.parametrize("most", [1, 3, 64])
def test_stream_limit_applies_to_each_caller(most: int) -> None:
    seats = StreamSeats(most)
    open_now = [seats.take("ada") for _ in range(most)]
    for one in open_now:
        one.__enter__()
    with pytest.raises(Limited), seats.take("ada"):
        pass
    with seats.take("bob"):
        assert seats.taken == most + 1
    open_now[0].__exit__(None, None, None)
    with seats.take("ada"):
        assert seats.taken == most


def test_a_stream_slot_is_returned_after_any_outcome() -> None:
    seats = StreamSeats(1)
    with pytest.raises(ZeroDivisionError), seats.take("ada"):
        raise ZeroDivisionError
    seats.judge("ada")
    assert seats.taken == 0
