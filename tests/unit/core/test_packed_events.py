"""The stored form of an append's events gives their envelopes again, byte for byte, and is much shorter."""

from __future__ import annotations

from dataclasses import replace

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from passerelle.core.event_chain import extend_chain
from passerelle.core.events import EncodedEvent, Event, Fact, VendorPayload, encode_event
from passerelle.core.facts import Ref, Scope
from passerelle.core.packed_events import (
    NO_HEAD,
    SEPARATOR,
    pack_copy,
    pack_events,
    unpack_events,
    unpack_frame,
)
from passerelle.core.ports.log import Entry

SESSION = "se_1"
TIMES = ("2026-01-02T03:04:05.006Z", "2026-01-02T03:04:05.007Z")
TEXTS = st.text(max_size=20) | st.sampled_from(
    ['"payload":{', "\x1f", "\x00", "\n", "*", "=", "é", "🦆"]
)
SCOPES = st.builds(
    Scope,
    session_id=st.sampled_from([SESSION, SESSION, SESSION, "se_2", None]),
    thread_id=st.sampled_from(["th_1", None]),
    task_id=st.sampled_from(["task_1", "task_2", None]),
    run_id=st.sampled_from(["run_1", None]),
)


@st.composite
def make_events(draw: st.DrawFn) -> list[EncodedEvent]:
    """Events of one append: most of them alike in what they share."""
    events = list[EncodedEvent]()
    for number in range(draw(st.integers(1, 8))):
        words = draw(st.dictionaries(TEXTS, TEXTS, max_size=3))
        framed = draw(st.booleans())
        # Members of a payload next to a frame: any but the name of the frame.
        fact = Fact(
            scope=draw(SCOPES),
            payload=VendorPayload(
                f"x.{draw(st.sampled_from(['a', 'é', 'with a space']))}", {**words}
            ),
            refs=draw(st.sampled_from([{}, {"r": Ref(blob="b_1", size=3)}])),
            frame=orjson.dumps({"statusUpdate": words}) if framed else None,
            facade=draw(st.sampled_from(["task_1", None])),
        )
        made = Event(
            f"ev_{number}",
            draw(st.sampled_from([TIMES[0], TIMES[0], TIMES[1]])),
            draw(st.sampled_from(["rt_1", "rt_1", "rt_2"])),
            fact,
            generation=draw(st.integers(0, 3)),
        )
        events.append(encode_event(made))
    return events


def list_entries(events: list[EncodedEvent], first: int, chain: str) -> list[Entry]:
    """The same events as one would read them if each were stored whole."""
    entries = list[Entry]()
    for sequence, event in enumerate(events, first):
        data, frame = event.at(sequence)
        entries.append(
            Entry(sequence, event.event_id, event.type, chain, data, frame, event.facade)
        )
        chain = extend_chain(chain, event.event_id)
    return entries


@given(events=make_events(), first=st.integers(1, 10**9))
def test_packed_events_are_unpacked_unchanged(events: list[EncodedEvent], first: int) -> None:
    packed = pack_events(events, SESSION)
    last = first + len(events) - 1
    assert unpack_events(packed, SESSION, last, "0000000a") == list_entries(
        events, first, "0000000a"
    )


@given(
    events=make_events(),
    skipped=st.integers(0, 9),
    limit=st.integers(1, 9),
    is_chained=st.booleans(),
)
def test_some_of_them_are_read_as_they_are_among_all(
    events: list[EncodedEvent], skipped: int, limit: int, *, is_chained: bool
) -> None:
    packed, last = pack_events(events, SESSION), 100 + len(events)
    read = unpack_events(
        packed, SESSION, last, "0000000a" if is_chained else "", 100 + skipped, limit
    )
    every = list_entries(events, 101, "0000000a")
    known = every if is_chained else [replace(entry, previous="") for entry in every]
    assert read == known[skipped : skipped + limit]


@given(events=make_events(), sequence=st.integers(99, 112))
def test_frame_of_one_is_read_as_it_is_among_all(events: list[EncodedEvent], sequence: int) -> None:
    packed, last = pack_events(events, SESSION), 100 + len(events)
    frames = {one.sequence: one.cut_frame() for one in list_entries(events, 101, "0000000a")}
    assert unpack_frame(packed, SESSION, last, sequence) == frames.get(sequence, b"")


@given(events=make_events())
def test_packed_copies_are_unpacked_unchanged(events: list[EncodedEvent]) -> None:
    packed = SEPARATOR.join((*NO_HEAD, *map(pack_copy, events)))
    assert unpack_events(packed, "pr_1", len(events), "0000000a") == list_entries(
        events, 1, "0000000a"
    )


def say(number: int) -> EncodedEvent:
    scope = Scope(session_id=SESSION, thread_id="th_1", task_id="task_1", run_id="run_1")
    return encode_event(
        Event(f"ev_{number}", TIMES[0], "rt_1", Fact(scope, VendorPayload("x.a", {})))
    )


def test_shared_members_of_an_append_are_written_once() -> None:
    events = [say(number) for number in range(8)]
    packed = pack_events(events, SESSION)
    for shared in (TIMES[0], "rt_1", "th_1", "task_1", "run_1"):
        assert packed.count(shared.encode()) == 1
    assert SESSION.encode() not in packed
    assert len(packed) < sum(len(event.body) for event in events) / 4


def test_a_scope_that_comes_back_is_named_by_its_number() -> None:
    def belong(number: int, **ids: str) -> EncodedEvent:
        fact = Fact(Scope(session_id=SESSION, thread_id="th_1", **ids), VendorPayload("x.a", {}))
        return encode_event(Event(f"ev_{number}", TIMES[0], "rt_1", fact))

    events = [belong(1), belong(2, task_id="t_1"), belong(3), belong(4, task_id="t_1")]
    packed = pack_events(events, SESSION)
    told = packed.split(SEPARATOR)[6::6]
    assert told == [b'"threadId":"th_1",', b'"threadId":"th_1","taskId":"t_1",', b"0", b"1"]
    assert unpack_events(packed, SESSION, 4, "0000000a") == list_entries(events, 1, "0000000a")
    with pytest.raises(ValueError, match="no scope 2 was written before"):
        unpack_events(packed.replace(b"\x1f1\x1f", b"\x1f2\x1f"), SESSION, 4, "0000000a")


def test_a_control_character_outside_of_json_is_refused() -> None:
    with pytest.raises(ValueError, match="the separator"):
        pack_events([EncodedEvent("ev_\x1f", "x.a", b'"x":1}')], SESSION)


@given(st.binary(max_size=60))
def test_other_bytes_are_no_events_or_have_as_many_as_their_fields(raw: bytes) -> None:
    fields = raw.count(SEPARATOR) + 1
    try:
        entries = unpack_events(raw, SESSION, 100, "0000000a")
    except ValueError:
        return
    assert len(entries) == (fields - 3) / 6
