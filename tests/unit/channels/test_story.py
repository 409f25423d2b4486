"""The facts that a connection derives about its link: pure, one input after another."""

from __future__ import annotations

import pytest

from passerelle.channels.inputs import NoticeDue
from passerelle.channels.story import (
    LinkEnded,
    LinkStarted,
    LinkStory,
    StreamRepaired,
    StreamResumed,
)
from passerelle.core.payloads.channel import EndReason
from passerelle.protocol.closing import CloseCode
from passerelle.protocol.cursor import Cursor, GapReason
from passerelle.protocol.frames import (
    Gap,
    Live,
    Mode,
    Refusal,
    Snapshot,
    Subscribe,
    Subscribed,
    Unsubscribed,
)

ONE, TWO = "session:se_1", "session:se_2"


def at(sequence: int) -> Cursor:
    return Cursor("0000000a", sequence, f"{sequence:08x}")


def answer(stream: str, mode: Mode, sequence: int, missed: int = 0) -> NoticeDue:
    return NoticeDue(Subscribed(stream, mode, at(sequence), dense=True, missed=missed))


@pytest.mark.parametrize("continues", [True, False])
def test_a_link_without_streams_has_begun_with_its_welcome(*, continues: bool) -> None:
    assert LinkStory(continues, ()).begin() == (LinkStarted(continues, ()),)


def test_a_link_has_begun_when_each_stream_of_its_hello_is_answered() -> None:
    story = LinkStory(continues=False, asked=(Subscribe(ONE, cursor=at(3)), Subscribe(TWO)))
    assert story.begin() == ()
    assert story.take(answer("inbox", "live", 9)) == ()
    assert story.take(answer(ONE, "resumed", 3, missed=4)) == ()
    assert story.take(NoticeDue(Live(ONE, at(7), 4))) == ()
    streams = (StreamResumed(ONE, "resumed", 3, 7), StreamResumed(TWO, "snap", 5, 5))
    assert story.take(answer(TWO, "snap", 5)) == (LinkStarted(resumed=True, streams=streams),)
    assert story.take(answer(TWO, "snap", 6)) == ()


@pytest.mark.parametrize("end", [Unsubscribed(ONE, "gone"), Refusal("not_found", "no", "sub", ONE)])
def test_a_stream_that_is_refused_holds_nothing_up(end: Unsubscribed | Refusal) -> None:
    story = LinkStory(continues=False, asked=(Subscribe(ONE),))
    assert story.begin() == ()
    assert story.take(NoticeDue(end)) == (LinkStarted(resumed=False, streams=()),)


@pytest.mark.parametrize(
    ("mode", "resumed"),
    [("resumed", True), ("acked", True), ("gap", True), ("snap", False), ("live", False)],
)
def test_a_cursor_or_an_ack_makes_it_a_resumption(mode: Mode, *, resumed: bool) -> None:
    story = LinkStory(continues=False, asked=(Subscribe(ONE),))
    ((fact,),) = [story.take(answer(ONE, mode, 2))]
    assert isinstance(fact, LinkStarted)
    assert fact.resumed is resumed


@pytest.mark.requirement("CHN-4")
def test_a_gap_is_repaired_with_its_snapshot_and_not_before() -> None:
    story = LinkStory(continues=False, asked=())
    story.begin()
    gap = Gap(ONE, GapReason.FORKED, at(9), at(4), 1, "inline")
    assert story.take(NoticeDue(gap)) == ()
    repaired = StreamRepaired(ONE, GapReason.FORKED, at(9), at(4))
    assert story.take(NoticeDue(Snapshot(ONE, at(4), {}))) == (repaired,)
    assert story.take(NoticeDue(Snapshot(ONE, at(5), {}))) == ()


@pytest.mark.requirement("CHN-10")
@pytest.mark.parametrize(
    ("code", "left", "reason"),
    [
        (None, True, "left"),
        (None, False, "connection_lost"),
        (CloseCode.HEARTBEAT_MISSED, False, "heartbeat_lost"),
        (CloseCode.SUPERSEDED, False, "superseded"),
        (CloseCode.DRAIN, True, "drained"),
        (CloseCode.REVOKED, False, "revoked"),
        (CloseCode.TOO_SLOW, False, "slow"),
        (CloseCode.MALFORMED, False, "refused"),
        (CloseCode.STORE_UNAVAILABLE, False, "connection_lost"),
    ],
)
def test_the_end_of_a_link_has_its_reason_and_the_last_acks(
    code: CloseCode | None, reason: EndReason, *, left: bool
) -> None:
    story = LinkStory(continues=False, asked=(Subscribe(ONE),))
    story.begin()
    story.note_acks({ONE: at(3)})
    story.note_acks({ONE: at(5)})
    began, over = story.end(code, left=left)
    assert began == LinkStarted(resumed=False, streams=())
    assert over == LinkEnded(reason, None if code is None else int(code), {ONE: 5})
