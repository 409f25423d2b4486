"""The ring: one history, bounded, and never served to a reader of another one."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from passerelle.channels.cursor_check import link_entries
from passerelle.channels.ring import Ring, RingBounds
from passerelle.protocol.cursor import Cursor
from tests.unit.channels.history import History


def filled(history: History, bounds: RingBounds) -> Ring:
    ring = Ring(history.at(0), bounds)
    for linked in link_entries(history.page(0, 10_000), history.at(0)):
        ring.add(linked)
    return ring


@given(st.integers(1, 60), st.integers(1, 30), st.data())
def test_a_ring_serves_exactly_the_entries_it_holds(
    length: int, bound: int, data: st.DataObject
) -> None:
    history = History()
    history.append(length)
    ring = filled(history, RingBounds(events=bound))
    sequence = data.draw(st.integers(0, length))
    found = ring.read_after(history.at(sequence), 1_000)
    if sequence < length - bound:
        assert found is None
    else:
        assert found is not None
        assert [linked.entry for linked in found] == history.page(sequence)
    assert ring.events == min(length, bound)
    assert ring.end == history.end


def test_the_size_bound_drops_the_oldest() -> None:
    history = History()
    history.append(50)
    ring = filled(history, RingBounds(size_bytes=2_000))
    assert ring.size_bytes <= 2_000
    assert 0 < ring.events < 50
    assert ring.start == history.at(ring.start.sequence)


def test_a_position_of_another_history_is_not_reached() -> None:
    history = History()
    history.append(5)
    ring = filled(history, RingBounds())
    position = history.at(3)
    assert ring.read_after(position, 10) is not None
    assert ring.read_after(Cursor(position.epoch, 3, "00000000"), 10) is None
    assert ring.read_after(Cursor("ffffffff", 3, position.chain), 10) is None


def test_an_entry_that_does_not_follow_is_refused() -> None:
    history = History()
    history.append(3)
    ring = Ring(history.at(0), RingBounds())
    linked = link_entries(history.page(0), history.at(0))
    with pytest.raises(ValueError, match="does not follow"):
        ring.add(linked[1])
