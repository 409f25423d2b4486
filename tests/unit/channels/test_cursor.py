"""Cursors: the text form, the chain, and every answer of the verification."""

from __future__ import annotations

import hashlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from passerelle.channels.cursor_check import (
    CursorBroken,
    CursorHeld,
    ReadAgain,
    end_of,
    link_entries,
    verify,
    verify_again,
)
from passerelle.core.errors import BadCursor
from passerelle.core.event_chain import extend_chain, start_chain
from passerelle.core.ports.log import Head
from passerelle.protocol.cursor import Cursor, GapReason, parse_cursor
from tests.unit.channels.history import History, renamed

EPOCHS = st.from_regex(r"[0-9a-f]{8}", fullmatch=True)


@given(EPOCHS, st.integers(0, 10**16 - 1), EPOCHS)
def test_a_cursor_reads_back_what_it_wrote(epoch: str, sequence: int, chain: str) -> None:
    cursor = Cursor(epoch, sequence, chain)
    assert parse_cursor(str(cursor)) == cursor
    assert len(str(cursor)) <= 34


@pytest.mark.parametrize(
    "text",
    [
        "",
        "6a77b89f",
        "6a77b89f.1",
        "6a77b89f.01.d1b96cc6",
        "6a77b89f.-1.d1b96cc6",
        "6A77B89F.1.d1b96cc6",
        "6a77b89f.1.d1b96cc",
        "6a77b89f.1.d1b96cc6.",
        " 6a77b89f.1.d1b96cc6",
        "6a77b89f.1.d1b96cc6\n",
        "6a77b89f.٣.d1b96cc6",
        "6a77b89f.99999999999999999.d1b96cc6",
    ],
)
def test_another_text_is_refused_and_names_its_field(text: str) -> None:
    with pytest.raises(BadCursor) as refused:
        parse_cursor(text, "subs[0].c")
    assert refused.value.field == "subs[0].c"


def test_the_chain_is_a_running_sha1_over_event_ids() -> None:
    first = hashlib.sha1(b"6a77b89f", usedforsecurity=False).hexdigest()[:8]
    second = hashlib.sha1((first + "ev_1").encode(), usedforsecurity=False).hexdigest()[:8]
    assert start_chain("6a77b89f") == first
    assert extend_chain(first, "ev_1") == second


def judge(history: History, cursor: Cursor) -> CursorHeld | CursorBroken:
    head, page = history.head, history.page(cursor.sequence)
    verdict = verify(head, page, cursor)
    return verify_again(head, page, cursor) if isinstance(verdict, ReadAgain) else verdict


def reason(history: History, cursor: Cursor) -> GapReason:
    verdict = judge(history, cursor)
    assert isinstance(verdict, CursorBroken)
    return verdict.why


@given(st.integers(0, 40), st.data())
def test_every_position_of_a_history_holds_and_is_followed_by_the_rest(
    length: int, data: st.DataObject
) -> None:
    history = History()
    if length:
        history.append(length)
    sequence = data.draw(st.integers(0, length))
    verdict = judge(history, history.at(sequence))
    assert isinstance(verdict, CursorHeld)
    assert [linked.entry for linked in verdict.entries] == history.page(sequence)
    assert verdict.entries[-1].chain == history.chain if verdict.entries else sequence == length


@pytest.mark.requirement("I8")
def test_no_head_is_lost() -> None:
    history = History()
    history.append(3)
    cursor = history.at(1)
    history.flush()
    assert reason(history, cursor) is GapReason.LOST


@pytest.mark.requirement("I8")
def test_another_epoch_is_a_gap_at_every_sequence() -> None:
    history = History()
    history.append(3)
    cursors = [history.at(sequence) for sequence in range(4)]
    history.recreate("00000002")
    history.append(3)
    assert {reason(history, cursor) for cursor in cursors} == {GapReason.EPOCH}


@pytest.mark.requirement("I8")
def test_a_position_beyond_the_end_is_ahead() -> None:
    history = History()
    history.append(5)
    cursor = history.end
    history.lose_tail(2)
    assert reason(history, cursor) is GapReason.AHEAD


@pytest.mark.requirement("I8")
@pytest.mark.parametrize("rewritten", [2, 3])
def test_a_sequence_that_was_used_again_is_forked(rewritten: int) -> None:
    history = History()
    history.append(5)
    cursor = history.end
    history.lose_tail(2)
    history.append(rewritten)
    assert reason(history, cursor) is GapReason.FORKED


@pytest.mark.requirement("I8")
def test_a_position_whose_successor_was_trimmed_is_a_gap_and_the_last_trimmed_one_still_holds() -> (
    None
):
    history = History()
    history.append(6)
    below, last_trimmed = history.at(2), history.at(3)
    history.trim(3)
    assert reason(history, below) is GapReason.TRIMMED
    assert isinstance(judge(history, last_trimmed), CursorHeld)


def test_a_stream_trimmed_to_nothing_holds_at_its_top() -> None:
    history = History()
    history.append(4)
    history.trim(4)
    assert judge(history, history.end) == CursorHeld((), Head("00000001", 4, history.chain, 5))
    assert reason(history, Cursor("00000001", 0, start_chain("00000001"))) is GapReason.TRIMMED


@pytest.mark.requirement("I8")
def test_an_entry_that_vanished_without_a_trim_is_lost() -> None:
    history = History()
    history.append(6)
    cursor = history.at(2)
    history.drop(3)
    assert reason(history, cursor) is GapReason.LOST


def test_missing_entries_are_read_once_more_before_they_are_called_gone() -> None:
    history = History()
    history.append(6)
    cursor = history.at(2)
    head = history.head
    history.trim(4)
    assert isinstance(verify(head, history.page(2), cursor), ReadAgain)
    verdict = verify_again(history.head, history.page(2), cursor)
    assert isinstance(verdict, CursorBroken)
    assert verdict.why is GapReason.TRIMMED


def test_a_page_may_reach_past_the_head_that_was_read_before_it() -> None:
    history = History()
    history.append(2)
    head, cursor = history.head, history.end
    history.append(2)
    verdict = verify(head, history.page(2), cursor)
    assert isinstance(verdict, CursorHeld)
    assert [linked.entry.sequence for linked in verdict.entries] == [3, 4]


def test_a_broken_page_returns_its_valid_prefix_and_the_next_read_has_the_reason() -> None:
    history = History()
    history.append(6)
    start = history.at(0)
    history.entries[2] = renamed(history.entries[2], "ev_other")
    prefix = link_entries(history.page(0), start)
    assert [linked.entry.sequence for linked in prefix] == [1, 2, 3]
    assert reason(history, Cursor(start.epoch, 3, prefix[-1].chain)) is GapReason.FORKED


def test_a_cursor_of_another_stream_never_holds() -> None:
    mine, other = History("0000000a"), History("0000000b")
    mine.append(3)
    other.append(3)
    assert reason(mine, other.at(2)) is GapReason.EPOCH
    head = mine.head
    assert head is not None
    mixed = Cursor(head.epoch, 2, other.at(2).chain)
    assert reason(mine, mixed) is GapReason.FORKED
    assert end_of(head) == mine.end
