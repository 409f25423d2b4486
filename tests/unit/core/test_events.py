"""The envelope: what it refuses to write, what it can always read, and the position of the frame in the bytes."""

from dataclasses import asdict, replace
from typing import cast

import orjson
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from passerelle.core.errors import InvalidInput, MalformedBody
from passerelle.core.event_type import EventType
from passerelle.core.events import (
    AnyPayload,
    Event,
    Fact,
    OpaquePayload,
    VendorPayload,
    decode_event,
    encode_event,
)
from passerelle.core.facts import Ref, Scope
from passerelle.core.payloads import PAYLOADS, Payload
from passerelle.core.payloads.conversation import TurnStarted
from passerelle.core.payloads.task import TaskAccepted, TaskCreated, TaskProgress, TaskUpdated
from passerelle.core.wire.codec import to_wire
from passerelle.core.wire.json import JsonObject
from passerelle.core.wire.times import format_ms
from tests.support.payloads import FULL_SCOPE, JSON_OBJECTS, sample, values

TURN = {"session_id", "thread_id", "turn_id"}
NEEDED = {
    "turn": TURN,
    "action": TURN | {"action_id"},
    "permission": TURN,
    "routing": TURN,
    "cost": TURN,
    "task": {"task_id"},
    "task.attempt": {"task_id", "run_id"},
    "run": {"task_id", "run_id"},
    "artifact": {"task_id", "run_id"},
    "thread": {"session_id", "thread_id"},
    "subagent": {"subagent_id"},
    "tool": {"tool_call_id"},
    "tool.catalog": TURN,
    "job.item": {"task_id"},
}
"""ENV-6 and ENV-7 by family, written down a second time on purpose."""

each_class = pytest.mark.parametrize("kind", list(EventType), ids=str)
TIME = "2026-01-02T03:04:05.678Z"
STAMPS = st.integers(0, 4_102_444_800_000).map(format_ms)
SEQUENCES = st.integers(1, 2**53)
NAMES = st.text(min_size=1, max_size=8)
FRAMES = JSON_OBJECTS.map(orjson.dumps)
SCOPES = values(Scope)
PAYLOAD_VALUES = st.sampled_from(list(PAYLOADS.values())).flatmap(values)
# The last member of the payload decides what the frame is joined to.
ENDINGS: tuple[AnyPayload, ...] = (
    TaskAccepted(),
    TurnStarted(),
    TaskUpdated(changed={}),
    TaskUpdated(changed={"title": {}}),
    TaskProgress(summary="{}"),
    VendorPayload("x.acme.note", {}),
    VendorPayload("x.acme.note", {"deep": {"deeper": {}}}),
    VendorPayload("x.acme.note", {"text": '"payload":{}}'}),
)


def event(
    payload: AnyPayload,
    scope: Scope = FULL_SCOPE,
    timestamp: str = TIME,
) -> Event:
    return Event("ev_1", timestamp, "rt_1", Fact(scope, payload))


def written(**changes: object) -> bytes:
    """A stored event with members changed, or with None removed."""
    data, _ = encode_event(event(sample(TaskCreated))).at(1)
    members = {**orjson.loads(data), **changes}
    return orjson.dumps({name: value for name, value in members.items() if value is not None})


def required(kind: str) -> set[str]:
    parts = kind.split(".")
    families = (".".join(parts[:length]) for length in range(len(parts), 0, -1))
    return next((NEEDED[family] for family in families if family in NEEDED), set[str]())


# ---- the type (ENV-1) and the time (ENV-3)


@pytest.mark.requirement("ENV-1")
@pytest.mark.parametrize(
    "name", ["", "x", "x.", "acme.note", "task.creatd", "TASK.CREATED", "task"]
)
def test_a_type_that_is_neither_normalized_nor_a_vendors_is_not_written(name: str) -> None:
    for payload in (VendorPayload(name, {}), OpaquePayload(name, {})):
        with pytest.raises(InvalidInput) as refused:
            encode_event(event(payload))
        assert refused.value.field == "type"


@pytest.mark.requirement("ENV-1")
def test_a_vendor_type_is_written_and_comes_back() -> None:
    note = event(VendorPayload("x.acme.note", {"a": [1, None]}))
    assert decode_event(encode_event(note).at(4)[0]) == note.at(4)


@pytest.mark.requirement("ENV-9")
@pytest.mark.parametrize("untyped", [VendorPayload, OpaquePayload])
def test_nothing_untyped_is_written_under_the_name_of_a_class(
    untyped: type[VendorPayload | OpaquePayload],
) -> None:
    with pytest.raises(InvalidInput) as refused:
        encode_event(event(untyped("task.accepted", {"any": "thing"})))
    assert refused.value.field == "payload"


def test_a_vendor_payload_cannot_pose_as_a_frame() -> None:
    with pytest.raises(InvalidInput) as refused:
        encode_event(event(VendorPayload("x.acme.note", {"a2a": {"task": {}}})))
    assert refused.value.field == "payload.a2a"


@pytest.mark.requirement("ENV-3")
@pytest.mark.parametrize(
    "stamp",
    [
        "",
        "now",
        "2026-01-02T03:04:05Z",
        "2026-01-02T03:04:05.678",
        "2026-01-02T03:04:05.678+00:00",
        "2026-01-02 03:04:05.678Z",
        "2026-01-02T03:04:05.678901Z",
        "2026-01-02T03:04:05.678Z\n",
        "٢٠٢٦-01-02T03:04:05.678Z",
    ],
)
def test_a_time_of_another_form_is_refused(stamp: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        encode_event(event(TaskAccepted(), timestamp=stamp))
    assert refused.value.field == "timestamp"


@pytest.mark.requirement("ENV-3")
@given(stamp=STAMPS, sequence=SEQUENCES)
def test_the_time_of_the_producer_is_kept(stamp: str, sequence: int) -> None:
    data, _ = encode_event(event(TaskAccepted(), timestamp=stamp)).at(sequence)
    assert decode_event(data).timestamp == stamp


# ---- the ids (ENV-6, ENV-7)


@each_class
@pytest.mark.requirement("ENV-6", "ENV-7")
def test_each_id_that_a_class_needs_is_missed_by_name_and_no_other(kind: EventType) -> None:
    payload, needed = sample(PAYLOADS[kind]), required(kind)
    present = cast("dict[str, str]", asdict(FULL_SCOPE))
    for name in present.keys() - {"session_id"}:
        scope = Scope(**{other: id for other, id in present.items() if other != name})
        without = event(payload, scope)
        if name not in needed:
            encode_event(without)
            continue
        with pytest.raises(InvalidInput) as refused:
            encode_event(without)
        assert refused.value.field == name
        assert kind in str(refused.value)


@pytest.mark.requirement("ENV-6")
def test_an_event_without_a_session_is_not_read() -> None:
    with pytest.raises(InvalidInput) as refused:
        decode_event(written(sessionId=None))
    assert refused.value.field == "scope.sessionId"


@pytest.mark.requirement("ENV-8")
def test_trace_and_span_are_written_with_the_other_ids() -> None:
    members = orjson.loads(encode_event(event(TaskAccepted())).at(1)[0])
    assert (members["traceId"], members["spanId"]) == (FULL_SCOPE.trace_id, FULL_SCOPE.span_id)


# ---- there and back


@pytest.mark.requirement("ENV-9", "ENV-10")
@given(
    payload=PAYLOAD_VALUES,
    scope=SCOPES,
    refs=st.dictionaries(NAMES, values(Ref), max_size=3),
    stamp=STAMPS,
    sequence=SEQUENCES,
    frame=st.none() | FRAMES,
    generation=st.integers(0, 10**6),
)
@settings(max_examples=200, suppress_health_check=[HealthCheck.too_slow])
def test_an_event_comes_back_as_it_was_with_refs_frame_and_place(
    payload: Payload,
    scope: Scope,
    refs: dict[str, Ref],
    stamp: str,
    sequence: int,
    frame: bytes | None,
    generation: int,
) -> None:
    filled = {
        name: getattr(scope, name) or getattr(FULL_SCOPE, name) for name in required(payload.type)
    }
    fact = Fact(replace(scope, **filled), payload, refs, frame, "task_1~2" if frame else None)
    before = Event("ev_1", stamp, "rt_1", fact, generation=generation)
    encoded = encode_event(before)
    data, place = encoded.at(sequence)
    after = decode_event(data, place, encoded.facade)
    assert after == before.at(sequence)
    assert encode_event(after) == encoded, "the same event always has the same bytes"


@pytest.mark.requirement("ENV-6", "ENV-8")
@given(
    texts=st.tuples(*[st.text(max_size=9) | st.sampled_from(['"', "\\", "\n", "é"])] * 4),
    scope=SCOPES,
    refs=st.sampled_from([{}, {"artifact": Ref(blob="ab")}]),
    generation=st.integers(0, 9),
)
def test_an_envelope_is_the_json_of_its_members_whatever_letters_are_in_them(
    texts: tuple[str, str, str, str], scope: Scope, refs: dict[str, Ref], generation: int
) -> None:
    name, version, runtime, vendor = texts
    payload = VendorPayload(f"x.{vendor}y", {"text": name})
    made = Event(
        name, TIME, runtime, Fact(scope, payload, refs), 0, f"1.{version}", generation=generation
    )
    members = {
        "eventId": name,
        "type": payload.name,
        "timestamp": TIME,
        "schemaVersion": f"1.{version}",
        "runtimeId": runtime,
        **to_wire(scope),
        **({"generation": generation} if generation else {}),
        **({"refs": {key: to_wire(ref) for key, ref in refs.items()}} if refs else {}),
        "payload": {"text": name},
    }
    assert b"{" + encode_event(made).body == orjson.dumps(members)


@pytest.mark.requirement("ENV-10")
def test_a_ref_of_the_wrong_form_is_refused_by_name() -> None:
    with pytest.raises(InvalidInput) as refused:
        decode_event(written(refs={"artifact": {"blob": 7}}))
    assert refused.value.field == "refs.artifact.blob"


# ---- the cut


@given(
    payload=st.sampled_from(ENDINGS) | PAYLOAD_VALUES,
    frame=FRAMES,
    sequence=SEQUENCES,
    refs=st.sampled_from([{}, {"artifact": Ref(blob="ab")}]),
)
@settings(max_examples=300, suppress_health_check=[HealthCheck.too_slow])
def test_the_cut_is_exactly_the_frame_before_and_after_the_store_has_put_the_sequence_first(
    payload: AnyPayload, frame: bytes, sequence: int, refs: dict[str, Ref]
) -> None:
    whole = event(payload)
    encoded = encode_event(replace(whole, fact=Fact(FULL_SCOPE, payload, refs, frame, "task_1")))
    assert encoded.frame == frame
    data, place = encoded.at(sequence)
    assert place is not None
    assert data[place[0] : place[0] + place[1]] == frame
    members = orjson.loads(data)
    assert next(iter(members)) == "sequence"
    assert list(members)[-1] == "payload"
    assert list(members["payload"])[-1] == "a2a"
    assert members["payload"]["a2a"] == orjson.loads(frame)
    assert decode_event(data, place, "task_1").fact.frame == frame
    assert decode_event(data).fact.payload == payload, "the frame is no member of the payload"


@pytest.mark.parametrize("payload", ENDINGS, ids=repr)
def test_an_event_without_a_frame_has_no_cut_and_no_place_for_one(payload: AnyPayload) -> None:
    encoded = encode_event(event(payload))
    assert (encoded.frame, encoded.at(1)[1]) == (b"", None)
    assert "a2a" not in orjson.loads(encoded.at(1)[0])["payload"]


# ---- what a reader does not know (ENV-5, ENV-12, ENV-13)


@pytest.mark.requirement("ENV-5")
@each_class
def test_a_class_of_a_higher_major_is_kept_unread_whatever_it_holds(kind: EventType) -> None:
    payload: JsonObject = {"shape": ["nobody", "knows"], "status": 7}
    data = written(
        type=kind,
        schemaVersion="2.0",
        payload=payload,
        refs={"artifact": {"blob": "ab", "tier": "cold"}},
        planetId="earth",
    )
    read = decode_event(data)
    assert read.fact.payload == OpaquePayload(kind, payload)
    assert read.schema_version == "2.0"
    assert read.fact.refs["artifact"].blob == "ab"
    assert (
        decode_event(b'{"sequence":1,' + encode_event(read).body).fact.payload == read.fact.payload
    )


@pytest.mark.requirement("ENV-5")
@each_class
def test_a_class_of_a_higher_minor_is_read_without_its_new_members(kind: EventType) -> None:
    known = sample(PAYLOADS[kind])
    encoded = orjson.loads(b"{" + encode_event(event(known)).body)
    encoded["payload"]["addedLater"] = {"a": 1}
    encoded["refs"] = {"artifact": {"blob": "ab", "tier": "cold"}}
    read = decode_event(orjson.dumps({**encoded, "schemaVersion": "1.1"}))
    assert read.fact.payload == known
    assert read.fact.refs == {"artifact": Ref(blob="ab")}
    with pytest.raises(InvalidInput):
        decode_event(orjson.dumps(encoded))


@pytest.mark.requirement("ENV-13")
@given(name=st.text("abcdefghij.", min_size=1, max_size=12), payload=JSON_OBJECTS)
def test_an_unknown_event_class_is_kept_unread(name: str, payload: JsonObject) -> None:
    kind = f"later.{name}"
    payload.pop("a2a", None)
    read = decode_event(written(type=kind, payload=payload))
    assert read.fact.payload == OpaquePayload(kind, payload)
    assert read.type == kind


@pytest.mark.requirement("ENV-12", "ENV-13")
@given(name=st.text("abcdefghij.", min_size=1, max_size=12), payload=JSON_OBJECTS)
def test_a_payload_of_a_vendor_is_kept_and_never_checked(name: str, payload: JsonObject) -> None:
    kind = f"x.{name}"
    payload.pop("a2a", None)
    assert decode_event(written(type=kind, payload=payload)).fact.payload == VendorPayload(
        kind, payload
    )


# ---- damage


@given(data=st.binary(max_size=40) | FRAMES)
def test_bytes_that_are_no_envelope_are_refused_and_nothing_else_happens(data: bytes) -> None:
    with pytest.raises(InvalidInput):
        decode_event(data)


@pytest.mark.parametrize("data", [b"", b"{", b"[]", b"null", b'"task.created"', b"\xff"])
def test_bytes_that_are_no_json_object_are_malformed(data: bytes) -> None:
    with pytest.raises(MalformedBody):
        decode_event(data)


@pytest.mark.requirement("ENV-1", "ENV-3", "ENV-5")
@pytest.mark.parametrize("name", ["type", "eventId", "timestamp", "schemaVersion", "runtimeId"])
@pytest.mark.parametrize("damage", [None, "", 7, ["task.created"]])
def test_an_envelope_without_one_of_its_members_is_refused_by_name(
    name: str, damage: object
) -> None:
    with pytest.raises(InvalidInput) as refused:
        decode_event(written(**{name: damage}))
    assert refused.value.field == name


@pytest.mark.parametrize(
    ("name", "damage"),
    [("sequence", "1"), ("sequence", True), ("sequence", 1.5), ("payload", []), ("refs", "ab")],
)
def test_a_member_of_another_kind_is_refused_by_name(name: str, damage: object) -> None:
    with pytest.raises(InvalidInput) as refused:
        decode_event(written(**{name: damage}))
    assert refused.value.field == name


@pytest.mark.requirement("ENV-9")
def test_a_damaged_payload_is_refused_with_its_path() -> None:
    with pytest.raises(InvalidInput) as refused:
        decode_event(written(payload={**orjson.loads(written())["payload"], "priority": "high"}))
    assert refused.value.field == "payload.priority"
