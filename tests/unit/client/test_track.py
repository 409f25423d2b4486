"""A client's track: duplicates are dropped, gaps are noticed, and positions are returned as complete cursors."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from passerelle.client import items
from passerelle.client.track import Track
from passerelle.protocol.cursor import Cursor, GapReason
from passerelle.protocol.frames import Event, Gap, Live, Snapshot, Subscribe, Subscribed

NAME = "session:se_1"
EPOCH = "0000000a"


def at(sequence: int, epoch: str = EPOCH) -> Cursor:
    return Cursor(epoch, sequence, f"{sequence:08x}")


def event(sequence: int, previous: int | None = None) -> Event:
    before = sequence - 1 if previous is None else previous
    return Event(NAME, sequence, before, at(sequence).chain, {"eventId": f"ev_{sequence}"})


def subscribed(sequence: int, mode: str = "resumed", epoch: str = EPOCH) -> Subscribed:
    return Subscribed(NAME, mode, at(sequence, epoch), dense=True, missed=0)  # type: ignore[arg-type]


def make(saved: int | None = None) -> Track:
    return Track(NAME, lambda _stream, _cursor: None, None if saved is None else str(at(saved)))


def started(sequence: int) -> Track:
    track = make(sequence)
    track.ask()
    track.take(subscribed(sequence))
    return track


def test_a_track_asks_with_the_whole_cursor_that_it_holds() -> None:
    track = started(3)
    item = track.take(event(4))
    assert isinstance(item, items.Event)
    assert item.cursor == str(at(4))
    assert track.ask() == Subscribe(NAME, cursor=at(4))


@pytest.mark.requirement("I8")
def test_a_hole_is_noticed_and_asked_for_again_and_nothing_is_taken_before_the_answer() -> None:
    track = started(3)
    assert track.take(event(6, previous=5)) is None
    assert (track.resubscribe, track.local_gaps) == (True, 1)
    assert track.ask() == Subscribe(NAME, cursor=at(3))
    assert track.take(event(7)) is None
    track.take(subscribed(3))
    assert isinstance(track.take(event(4)), items.Event)


def test_holes_of_a_filtered_view_are_none() -> None:
    track = started(3)
    assert isinstance(track.take(event(9, previous=2)), items.Event)
    assert isinstance(track.take(event(20, previous=9)), items.Event)
    assert track.local_gaps == 0


def test_a_repeat_is_dropped() -> None:
    track = started(3)
    assert track.take(event(4)) is not None
    assert track.take(event(4)) is None
    assert track.take(event(3)) is None


def test_a_heartbeat_moves_past_hidden_events_forward_only() -> None:
    track = started(3)
    assert track.move(at(8))
    assert not track.move(at(5))
    assert not track.move(at(9, "0000000b"))
    assert track.ask().cursor == at(8)


def test_a_gap_and_a_snapshot_reset_the_position_also_backwards() -> None:
    track = started(20)
    gap = track.take(Gap(NAME, GapReason.AHEAD, at(20), at(18), 1, "inline"))
    assert gap == items.Gap(NAME, GapReason.AHEAD, str(at(20)), str(at(18)), has_snapshot=True)
    assert track.take(event(19)) is None, "nothing before the snapshot"
    assert isinstance(track.take(Snapshot(NAME, at(18), {})), items.Snapshot)
    found = track.take(event(19))
    assert isinstance(found, items.Event)
    assert not found.replayed


def test_events_that_a_snapshot_contains_are_marked_as_replayed() -> None:
    track = make()
    track.ask()
    track.take(Snapshot(NAME, at(6), {}))
    track.take(subscribed(4, "acked"))
    found = [track.take(event(sequence)) for sequence in (5, 6, 7)]
    assert [item.replayed for item in found if isinstance(item, items.Event)] == [True, True, False]


def test_a_younger_link_that_began_earlier_repeats_nothing() -> None:
    track = started(3)
    track.take(event(4))
    track.take(event(5))
    track.take(subscribed(3))
    assert [track.take(event(sequence)) for sequence in (4, 5)] == [None, None]
    assert isinstance(track.take(event(6)), items.Event)


def test_live_is_reported_and_ends_with_a_new_subscription() -> None:
    track = started(3)
    assert isinstance(track.take(Live(NAME, at(3), 0)), items.Live)
    assert track.is_live
    track.ask()
    assert not track.is_live


@given(st.integers(0, 20), st.data())
def test_repeats_and_overlaps_of_any_kind_apply_each_event_once(
    start: int, data: st.DataObject
) -> None:
    track, applied = started(start), list[int]()
    top = start
    for _ in range(data.draw(st.integers(0, 30))):
        again = data.draw(st.integers(start, top)) if data.draw(st.booleans()) else top
        if data.draw(st.integers(0, 5)) == 0:
            track.ask()
            track.take(subscribed(again))
        sequence = again + 1
        item = track.take(event(sequence))
        top = max(top, sequence)
        if isinstance(item, items.Event):
            applied.append(item.sequence)
    assert applied == list(range(start + 1, start + 1 + len(applied)))
    assert track.local_gaps == 0
