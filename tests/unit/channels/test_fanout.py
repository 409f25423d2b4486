"""The fan-out: one message for all readers at the head, and no reader that falls behind misses an event."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import orjson
import pytest

from passerelle.channels import fanout
from passerelle.channels.counts import ChannelCounts
from passerelle.channels.cursor_check import LinkedEntry, link_entries
from passerelle.channels.fanout import WINDOW_S, Fanout, GroupMember, find_window_s
from passerelle.channels.ring import Ring, RingBounds
from passerelle.channels.views import FullView, PlainView, View
from tests.unit.channels.history import History

pytestmark = pytest.mark.anyio

NAME = "session:se_one"


@dataclass(eq=False)
class Reader:
    """A member that has room or not."""

    has_room: bool = True
    messages: list[bytes] = field(default_factory=list[bytes])

    def take_messages(self, messages: list[bytes]) -> bool:
        if self.has_room:
            self.messages += messages
        return self.has_room

    @property
    def places(self) -> list[tuple[int, int]]:
        """Previous and own sequence of each event."""
        frames = [orjson.loads(line) for one in self.messages for line in one.split(b"\n")]
        return [(frame["p"], frame["o"]) for frame in frames]


@dataclass
class Stream:
    """A ring over a history, and the fan-out of both."""

    history: History = field(default_factory=History)
    bounds: RingBounds = field(default_factory=RingBounds)

    def __post_init__(self) -> None:
        self.ring: Ring | None = Ring(self.history.at(0), self.bounds)
        self.fanout = Fanout(lambda: self.ring, ChannelCounts())

    def append(self, count: int = 1, kind: str = "task.started") -> None:
        assert self.ring is not None
        before = self.ring.end
        self.history.append(count, kind)
        fresh: Sequence[LinkedEntry] = link_entries(self.history.page(before.sequence), before)
        for linked in fresh:
            self.ring.add(linked)
        self.fanout.take_change(fresh)

    def join(self, reader: Reader, view: View | None = None) -> GroupMember:
        assert self.ring is not None
        end = self.ring.end
        member = self.fanout.join(NAME, view or FullView(), end, end.sequence, reader.take_messages)
        assert member is not None
        return member


@pytest.fixture
def wide_window_s(monkeypatch: pytest.MonkeyPatch) -> float:
    """A window that does not end while a loaded machine looks elsewhere."""
    wide_s = 0.25
    for name in ("WINDOW_S", "_LONGEST_WINDOW_S"):
        monkeypatch.setattr(fanout, name, wide_s)
    return wide_s


async def test_everybody_at_the_end_is_given_the_very_same_message() -> None:
    stream, readers = Stream(), [Reader(), Reader(), Reader()]
    for reader in readers:
        stream.join(reader)
    stream.append(2)
    stream.append(1)
    await asyncio.sleep(0)
    assert [reader.places for reader in readers] == [[(0, 1), (1, 2), (2, 3)]] * 3
    assert len({id(message) for reader in readers for message in reader.messages}) == 1


async def test_a_member_without_room_goes_on_from_where_it_was_and_the_others_are_not_held_up() -> (
    None
):
    stream, slow, quick = Stream(), Reader(), Reader()
    left, stays = stream.join(slow), stream.join(quick)
    stream.append()
    await asyncio.sleep(0)
    slow.has_room = False
    stream.append()
    await asyncio.sleep(0)
    assert left.left.done()
    assert not stays.left.done()
    assert (left.cursor, left.previous, left.last_sent) == (stream.history.at(1), 1, left.cursor)
    assert stays.cursor == stream.history.at(2)
    stream.append()
    await asyncio.sleep(0)
    assert (slow.places, quick.places) == ([(0, 1)], [(0, 1), (1, 2), (2, 3)])


async def test_a_reader_joins_the_fanout_only_at_the_head() -> None:
    stream = Stream()
    begin = stream.history.at(0)
    stream.append()
    assert stream.fanout.join(NAME, FullView(), begin, 0, Reader().take_messages) is None
    stream.ring = None
    assert stream.fanout.join(NAME, FullView(), begin, 0, Reader().take_messages) is None


async def test_hidden_events_move_the_position_and_are_not_sent() -> None:
    stream, reader = Stream(), Reader()
    member = stream.join(reader, PlainView())
    stream.append(2, "reasoning.summary")
    await asyncio.sleep(0)
    assert (reader.messages, member.cursor, member.last_sent) == ([], stream.history.at(2), None)
    stream.append()
    await asyncio.sleep(0)
    assert reader.places == [(0, 3)]
    assert member.last_sent == stream.history.at(3)


class ForeignTimer:
    """As uvloop has them: of no class of asyncio."""

    def __init__(self, timer: asyncio.TimerHandle) -> None:
        self.cancel = timer.cancel


async def test_an_urgent_event_is_sent_in_order_even_in_an_open_window(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    loop = asyncio.get_running_loop()
    call_at = loop.call_at

    def call(when_s: float, act: Callable[[], None]) -> ForeignTimer:
        return ForeignTimer(call_at(when_s, act))

    monkeypatch.setattr(loop, "call_at", call)
    stream, reader = Stream(), Reader()
    seats = [stream.join(one) for one in (reader, *(Reader() for _ in range(1_000)))]
    stream.append(1, "task.progress")
    await asyncio.sleep(0)
    stream.append(1, "task.progress")
    stream.append(1, "action.required")
    await asyncio.sleep(0)
    assert reader.places == [(0, 1), (1, 2), (2, 3)]
    assert {member.cursor for member in seats} == {stream.history.at(3)}


def test_a_window_is_as_long_as_its_readers_are_many_within_bounds() -> None:
    assert find_window_s(0) == find_window_s(100) == WINDOW_S
    assert find_window_s(300) == pytest.approx(0.03)
    assert find_window_s(100_000) == 0.05


async def test_progress_goes_at_once_and_then_together_and_what_is_waited_for_takes_it_along(
    wide_window_s: float,
) -> None:
    stream, reader = Stream(), Reader()
    stream.join(reader)
    stream.append(1, "task.progress")
    await asyncio.sleep(0)
    assert reader.places == [(0, 1)]
    stream.append(1, "task.progress")
    stream.append(1, "task.progress")
    await asyncio.sleep(0)
    assert len(reader.messages) == 1
    await asyncio.sleep(2 * wide_window_s)
    assert reader.places[1:] == [(1, 2), (2, 3)]
    assert len(reader.messages) == 2
    stream.append(1, "task.progress")
    stream.append(1, "task.progress")
    stream.append(1, "action.required")
    await asyncio.sleep(0)
    assert reader.places[-1] == (5, 6)
    assert len(reader.messages) in {3, 4}


async def test_a_reader_that_joins_within_a_window_gets_every_event_once(
    wide_window_s: float,
) -> None:
    stream, first, second = Stream(), Reader(), Reader()
    stream.join(first)
    stream.append(1, "task.progress")
    await asyncio.sleep(0)
    stream.append(1, "task.progress")
    stream.join(second)
    stream.append(1, "task.progress")
    await asyncio.sleep(2 * wide_window_s)
    assert first.places == [(0, 1), (1, 2), (2, 3)]
    assert second.places == [(2, 3)]


async def test_when_the_history_is_another_one_all_leave() -> None:
    stream, reader = Stream(), Reader()
    member = stream.join(reader)
    stream.append()
    await asyncio.sleep(0)
    stream.history = History("00000002")
    stream.ring = Ring(stream.history.at(0), stream.bounds)
    stream.fanout.take_change(())
    await asyncio.sleep(0)
    assert member.left.done()
    assert str(member.cursor).startswith("00000001.1.")
    assert reader.places == [(0, 1)]


async def test_a_ring_overflow_before_delivery_sends_all_readers_to_the_store() -> None:
    stream = Stream(bounds=RingBounds(events=4))
    reader = Reader()
    member = stream.join(reader)
    stream.append(6)
    await asyncio.sleep(0)
    assert member.left.done()
    assert (member.cursor, reader.messages) == (stream.history.at(0), [])


async def test_a_reader_that_left_gets_nothing_more() -> None:
    stream, reader = Stream(), Reader()
    member = stream.join(reader)
    member.leave()
    stream.append()
    await asyncio.sleep(0)
    assert reader.messages == []
    assert member.cursor == stream.history.at(0)
