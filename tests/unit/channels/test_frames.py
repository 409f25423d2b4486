"""Frames on the wire: written frames are read back, and invalid ones are refused by name."""

from __future__ import annotations

from typing import get_args

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from passerelle.channels.cursor_check import LinkedEntry, build_event
from passerelle.core.ports.log import Entry
from passerelle.core.wire.json import Json, JsonObject
from passerelle.protocol.cursor import Cursor, GapReason
from passerelle.protocol.frames import (
    SERVER_ONLY_TYPES,
    Ack,
    Answer,
    AskSnapshot,
    Call,
    ClientBeat,
    ClientFrame,
    Drain,
    Event,
    Expiry,
    Failure,
    Gap,
    Hello,
    Live,
    Refusal,
    Renew,
    SayPresence,
    ServerBeat,
    ServerFrame,
    ShowPresence,
    Snapshot,
    Subscribe,
    Subscribed,
    Unsubscribe,
    Unsubscribed,
    Volatile,
    Welcome,
    Withdrawn,
)
from passerelle.protocol.reverse_frames import (
    AgentCall,
    AnswerItem,
    AnswerPiece,
    CallPiece,
    Credit,
    Done,
    Failed,
    Register,
    Registered,
    StopAsking,
    StopWaiting,
    StreamItem,
    TakeMore,
    Unregister,
    Unregistered,
)
from passerelle.protocol.wire import (
    build_item,
    decode_client,
    decode_server,
    encode_client,
    encode_server,
    pack_messages,
    split_message,
)

CURSOR = Cursor("6a77b89f", 1042, "d1b96cc6")

CLIENT_FRAMES: list[ClientFrame] = [
    Hello(1, "dev_7f", "ui", "tok", "1", "js/1.0", frozenset({"rpc"}), None, (Subscribe("inbox"),)),
    Hello(1, "dev", "device", resume="ch_x.7"),
    Subscribe("session:se_1", full=True, cursor=CURSOR, id="9"),
    Subscribe("task:task_1", start="snap", snapshot="never", max_events=10),
    Unsubscribe("inbox"),
    AskSnapshot("inbox", "4"),
    Ack({"inbox": CURSOR, "session:se_1": CURSOR}),
    ClientBeat(3),
    ClientBeat(4, {"inbox": CURSOR}),
    Call("5", "submit_turn", "k-81", {"parts": [{"text": "book it\nnow"}]}),
    Call("6", "get_task", None, {}),
    Call(
        "7", "a2a:SendStreamingMessage", "k-82", {"message": {}}, "planner", 4, {"traceparent": "x"}
    ),
    Hello(1, "dev", "ui", ticket="psr_once"),
    Renew("next"),
    Register("builder", {"name": "Builder"}, 4),
    Unregister("builder"),
    AnswerItem("g1", 1, {"task": {"id": "t"}}),
    AnswerItem("g1", 2),
    AnswerPiece("g1", '{"task":{}}'),
    Done("g1"),
    Done("g2", {"id": "t"}),
    Failed("g3", "busy", "later", 2),
    Failed("g4", "a2a", "no such task", data={"code": -32001}),
    Subscribe("task:task_1", volatile=True),
    TakeMore("7", 2),
    StopAsking("7"),
    SayPresence("away"),
    SayPresence("active", frozenset({"inbox", "task:task_1"})),
]

SERVER_FRAMES: list[ServerFrame] = [
    Welcome(
        "cn_9", "ch_1", 7, "pr_ada", frozenset({"perm", "rpc"}), 25.0, 35.0, {"in": 65_536}, "ch_1.7",
        "2026-11-20T15:00:00.000Z", ({"actionId": "act_1"},), pending_more=True,
    ),
    Subscribed("inbox", "resumed", CURSOR, dense=True, missed=2, id="9"),
    Unsubscribed("inbox", "forbidden"),
    Event("inbox", 1043, 1042, "77aa01bc", {"type": "task.progress"}),
    Volatile("task:task_1", "task_1/poem", 4, ""),
    Live("inbox", CURSOR, 2),
    Gap("inbox", GapReason.TRIMMED, CURSOR, CURSOR, 1_900, "inline"),
    Gap("inbox", GapReason.LOST, None, None, None, "none"),
    Snapshot("inbox", CURSOR, {"pending": []}),
    ServerBeat(3),
    ServerBeat(4, {"task:t": CURSOR}),
    Answer("5", {"turnId": "tu_4"}),
    Failure("6", "store_unavailable", "gone", 3, {"reason": "x"}),
    Refusal("ack_ahead", "beyond", "ack", "inbox", fatal=True, retry_s=2),
    Refusal("not_found", "there is no stream 'x'", "sub", "x", id="8"),
    Expiry(60),
    Drain(2_000, 5_000),
    Registered("builder", "/agents/builder", 3),
    Unregistered("builder", "superseded"),
    AgentCall("g1", "builder", "a2a:SendMessage", 30_000, 32, {"A2A-Version": "1.0"}, {"message": {}}),
    AgentCall("g2", "builder", "a2a:GetTask"),
    Credit("g1", 1),
    StopWaiting("g1"),
    CallPiece("g2", '{"id":"t"}'),
    StreamItem("7", 1, str(CURSOR), {"task": {"id": "t"}}),
    StreamItem("7", 2),
    Withdrawn("act_2f1", "pairing"),
    ShowPresence("inbox:pr_ada", ({"device": "phone", "state": "away", "focus": []},)),
]  # fmt: skip


@pytest.mark.parametrize("frame", CLIENT_FRAMES, ids=lambda frame: type(frame).__name__)
def test_a_client_frame_reads_back_as_it_was_written(frame: ClientFrame) -> None:
    assert decode_client(encode_client(frame)) == frame


@pytest.mark.parametrize("frame", SERVER_FRAMES, ids=lambda frame: type(frame).__name__)
def test_a_server_frame_reads_back_as_it_was_written(frame: ServerFrame) -> None:
    assert decode_server(encode_server(frame)) == frame


def test_every_frame_type_has_an_example_here() -> None:
    assert {type(frame) for frame in CLIENT_FRAMES} == set(get_args(ClientFrame))
    assert {type(frame) for frame in SERVER_FRAMES} == set(get_args(ServerFrame))


def test_frames_of_one_message_are_split_at_line_feeds() -> None:
    (message,) = pack_messages([encode_client(frame) for frame in CLIENT_FRAMES])
    assert [decode_client(line) for line in split_message(message.decode())] == CLIENT_FRAMES


def test_unknown_members_are_ignored() -> None:
    assert decode_client(b'{"t":"unsub","s":"inbox","later":1}') == Unsubscribe("inbox")
    assert decode_server(b'{"t":"later","x":1}') is None


@pytest.mark.parametrize(
    ("members", "code", "field"),
    [
        ({"t": "sub"}, "invalid_input", "s"),
        ({"t": "sub", "s": ""}, "invalid_input", "s"),
        ({"t": "sub", "s": "x" * 256}, "invalid_input", "s"),
        ({"t": "sub", "s": "inbox", "c": "nope"}, "bad_cursor", "c"),
        ({"t": "sub", "s": "inbox", "c": 7}, "invalid_input", "c"),
        ({"t": "sub", "s": "inbox", "from": "there"}, "invalid_input", "from"),
        ({"t": "sub", "s": "inbox", "view": "all"}, "invalid_input", "view"),
        ({"t": "sub", "s": "inbox", "view": []}, "invalid_input", "view"),
        ({"t": "sub", "s": "inbox", "view": {}}, "invalid_input", "view"),
        ({"t": "sub", "s": "inbox", "max": 0}, "invalid_input", "max"),
        ({"t": "sub", "s": "inbox", "max": True}, "invalid_input", "max"),
        ({"t": "ack"}, "invalid_input", "a"),
        ({"t": "ack", "a": {}}, "invalid_input", "a"),
        ({"t": "ack", "a": {"inbox": "1.2.3"}}, "bad_cursor", "a.inbox"),
        ({"t": "hb", "n": -1}, "invalid_input", "n"),
        ({"t": "hb", "n": 1.5}, "invalid_input", "n"),
        ({"t": "rpc", "m": "x"}, "invalid_input", "id"),
    ],
)
def test_a_wrong_member_is_refused_by_name_and_is_not_fatal(
    members: JsonObject, code: str, field: str
) -> None:
    refused = decode_client(orjson.dumps(members))
    assert isinstance(refused, Refusal)
    assert (refused.code, refused.of, refused.fatal) == (code, members["t"], False)
    assert refused.message.startswith(f"{field}:")


@pytest.mark.parametrize(
    "members",
    [
        {"t": "rpc", "id": "8"},
        {"t": "rpc", "id": "8", "m": "get_task", "d": []},
        {"t": "sub", "id": "8", "s": "inbox", "c": "nope"},
    ],
)
def test_a_wrong_frame_with_an_id_is_answered_under_that_id(members: JsonObject) -> None:
    failed = decode_client(orjson.dumps(members))
    assert isinstance(failed, Failure)
    assert failed.id == "8"


@pytest.mark.parametrize(
    "hello",
    [
        {"t": "hello"},
        {"t": "hello", "v": 1, "device": "d", "role": "king"},
        {"t": "hello", "v": 0, "device": "d", "role": "ui"},
        {"t": "hello", "v": 1, "device": "d", "role": "ui", "subs": [{"s": "inbox", "c": "x"}]},
        {"t": "hello", "v": 1, "device": "d", "role": "ui", "subs": ["inbox"]},
    ],
)
def test_a_wrong_hello_is_fatal(hello: JsonObject) -> None:
    refused = decode_client(orjson.dumps(hello))
    assert isinstance(refused, Refusal)
    assert refused.fatal


@pytest.mark.requirement("CMD-29")
@pytest.mark.parametrize("kind", sorted(SERVER_ONLY_TYPES))
def test_a_frame_of_the_server_is_forbidden_to_clients(kind: str) -> None:
    refused = decode_client(orjson.dumps({"t": kind, "id": "1", "d": {"state": "completed"}}))
    assert isinstance(refused, Refusal)
    assert (refused.code, refused.of) == ("forbidden_frame", kind)


@given(st.binary(max_size=60) | st.text(max_size=60).map(str.encode))
def test_no_bytes_make_the_decoder_raise(raw: bytes) -> None:
    decode_client(raw)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=6,
)  # fmt: skip
WRITTEN: list[JsonObject] = [orjson.loads(encode_client(frame)) for frame in CLIENT_FRAMES]
NAMES = sorted({name for members in WRITTEN for name in members} - {"t"})
MEMBERS = st.sampled_from(NAMES)
VALUES: tuple[Json, ...] = (None, True, -1, 1.5, "", "x", [], [[]], {}, {"x": []})


@pytest.mark.parametrize("frame", WRITTEN, ids=lambda frame: str(frame["t"]))
def test_no_kind_of_value_in_any_member_makes_the_decoder_raise(frame: JsonObject) -> None:
    for name in NAMES:
        for value in VALUES:
            decode_client(orjson.dumps({**frame, name: value}))


@given(st.sampled_from(WRITTEN), st.dictionaries(MEMBERS, JSON, max_size=3))
def test_any_members_are_a_frame_or_a_refusal(frame: JsonObject, members: JsonObject) -> None:
    decoded = decode_client(orjson.dumps({**frame, **members}))
    if not isinstance(decoded, Refusal | Failure):
        assert decode_client(encode_client(decoded)) == decoded


@given(st.text(min_size=1, max_size=20), st.integers(1, 2**40), st.integers(0, 2**40))
def test_an_event_frame_holds_the_stored_bytes_untouched(
    stream: str, sequence: int, previous: int
) -> None:
    data = b'{"sequence":%d,"type":"x",  "n":1.10,"payload":{"a":1,"a":2}}' % sequence
    linked = LinkedEntry(Entry(sequence, "ev_1", "x", "0" * 8, data), "0000000a")
    frame = build_event(stream, linked, previous)
    assert data in frame
    decoded = decode_server(frame)
    assert isinstance(decoded, Event)
    assert (decoded.stream, decoded.sequence, decoded.previous) == (stream, sequence, previous)
    assert decoded.chain == "0000000a"


def test_an_item_frame_holds_the_stored_bytes_untouched() -> None:
    data = b'{"statusUpdate":{"a":1.10,  "a":2}}'
    assert data in build_item("s1", 3, "c", data)
    assert decode_server(build_item("s1", 3, "c", data)) == StreamItem(
        "s1", 3, "c", {"statusUpdate": {"a": 2}}
    )
    assert decode_server(build_item("s1", 4, "", None)) == StreamItem("s1", 4)


def nest(levels: int) -> str:
    return "[" * levels + "]" * levels


def test_frame_of_64_levels_is_read_and_one_more_is_refused_by_the_id_of_its_call() -> None:
    head = '{"t":"rpc","id":"7","m":"submit_turn","d":{"x":'
    assert isinstance(decode_client(f"{head}{nest(62)}}}}}".encode()), Call)
    assert decode_client(f"{head}{nest(63)}}}}}".encode()) == Failure(
        "7", "invalid_input", "frame: nested deeper than 64 levels", data={"field": "frame"}
    )


def test_deep_frame_without_an_id_does_not_end_the_connection() -> None:
    refused = decode_client(f'{{"t":"sub","s":"inbox","x":{nest(600)}}}'.encode())
    assert isinstance(refused, Refusal)
    assert (refused.of, refused.fatal) == ("sub", False)
