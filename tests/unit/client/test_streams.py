"""A client's streams: bounded, subscribed once per link, acknowledged once, and resumed."""

from __future__ import annotations

import pytest

from passerelle.client.client_stream import QUEUED_ITEMS
from passerelle.client.items import ChannelStopped, Stopped, StreamClosed
from passerelle.client.streams import Streams
from passerelle.protocol.cursor import Cursor, GapReason
from passerelle.protocol.frames import (
    Ack,
    Event,
    Gap,
    Live,
    Snapshot,
    Subscribe,
    Subscribed,
    Unsubscribe,
)

pytestmark = pytest.mark.anyio
NAME = "session:se_1"


def at(sequence: int) -> Cursor:
    return Cursor("0000000a", sequence, f"{sequence:08x}")


def begun(streams: Streams, sequence: int = 0) -> None:
    streams.open(NAME, str(at(sequence)), full=False, start=None, snapshot=None)
    assert streams.ask_all() == (Subscribe(NAME, cursor=at(sequence)),)
    streams.take(Subscribed(NAME, "resumed", at(sequence), dense=True, missed=0))


def event(sequence: int) -> Event:
    return Event(NAME, sequence, sequence - 1, at(sequence).chain, {})


async def test_a_stream_is_asked_for_once_per_link() -> None:
    streams = Streams()
    begun(streams)
    assert streams.ask_rest() == ()
    streams.open("inbox", None, full=False, start=None, snapshot=None)
    assert streams.ask_rest() == (Subscribe("inbox"),)
    assert len(streams.ask_all()) == 2
    with pytest.raises(ValueError, match="followed already"):
        streams.open("inbox", None, full=False, start=None, snapshot=None)


async def test_a_full_stream_is_left_and_taken_up_where_it_was() -> None:
    streams = Streams()
    followed = streams.open(NAME, str(at(0)), full=False, start=None, snapshot=None)
    streams.ask_all()
    streams.take(Subscribed(NAME, "resumed", at(0), dense=True, missed=0))
    answers = [streams.take(event(sequence)) for sequence in range(1, QUEUED_ITEMS + 3)]
    assert [frames for frames in answers if frames] == [[Unsubscribe(NAME)]]
    assert followed.is_paused
    assert streams.ask_all() == (), "a full stream is not asked for again"
    for _ in range(QUEUED_ITEMS):
        await followed.next()
    assert streams.ask_all() == (Subscribe(NAME, cursor=at(QUEUED_ITEMS)),)
    streams.take(Subscribed(NAME, "resumed", at(QUEUED_ITEMS), dense=True, missed=2))
    streams.take(event(QUEUED_ITEMS + 1))
    assert (await followed.next()).stream == NAME


async def test_an_ack_is_sent_once_and_again_after_a_new_link() -> None:
    streams = Streams()
    begun(streams)
    streams.take(event(1))
    followed = streams._followed[NAME]  # pyright: ignore[reportPrivateUsage]
    followed.acknowledge(str(at(1)))
    assert streams.take_acks() == {NAME: at(1)}
    assert streams.take_acks() == {}
    streams.ask_all()
    followed.is_ack_pending = True
    assert streams.take_acks() == {}, "not before the server has answered"
    streams.take(Subscribed(NAME, "resumed", at(1), dense=True, missed=0))
    assert streams.take_acks() == {NAME: at(1)}
    assert streams.close(followed) == [Unsubscribe(NAME)]
    assert streams.close(followed) == []


async def test_closing_sends_the_pending_ack_first() -> None:
    streams = Streams()
    begun(streams)
    streams.take(event(1))
    followed = streams._followed[NAME]  # pyright: ignore[reportPrivateUsage]
    followed.acknowledge(str(at(1)))
    assert streams.close(followed) == [Ack({NAME: at(1)}), Unsubscribe(NAME)]


async def test_hidden_events_are_acknowledged_after_all_shown_ones() -> None:
    streams = Streams()
    begun(streams)
    streams.take(event(1))
    followed = streams._followed[NAME]  # pyright: ignore[reportPrivateUsage]
    await followed.next()
    streams.pass_over({NAME: at(5)})
    assert streams.take_acks() == {}, "the application has not said that it has event 1"
    followed.acknowledge(str(at(5)))
    streams.take_acks()
    streams.pass_over({NAME: at(9)})
    assert streams.take_acks() == {NAME: at(9)}


async def test_waiting_items_are_taken_before_the_end_is_raised() -> None:
    streams = Streams()
    begun(streams)
    streams.take(Live(NAME, at(0), 0))
    assert streams.replaying == frozenset()
    followed = streams._followed[NAME]  # pyright: ignore[reportPrivateUsage]
    streams.end(NAME, "forbidden")
    assert isinstance(await followed.next(), object)
    with pytest.raises(StreamClosed, match="forbidden"):
        await followed.next()
    streams.end_all(ChannelStopped(Stopped(1000)))
    with pytest.raises(ChannelStopped):
        await followed.next()


@pytest.mark.requirement("CHN-5")
@pytest.mark.parametrize(
    ("said", "sends"),
    [
        (Cursor("0000000b", 1, "00000001"), False),
        (at(7), False),
        (Cursor("0000000a", 4, "ffffffff"), False),
        (at(4), True),
        (at(3), True),
    ],
)
async def test_an_ack_of_what_the_server_has_lost_meanwhile_is_not_sent(
    said: Cursor, *, sends: bool
) -> None:
    streams = Streams()
    followed = streams.open(NAME, str(at(9)), full=False, start=None, snapshot=None)
    streams.ask_all()
    streams.take(Gap(NAME, GapReason.AHEAD, at(9), at(4), None, "inline"))
    streams.take(Snapshot(NAME, at(4), {}))
    followed.acknowledge(str(said))
    assert streams.take_acks() == ({NAME: said} if sends else {})
