"""Each normalized class has one payload type, which checks its wire form."""

from dataclasses import fields
from typing import Any, cast, get_type_hints

import orjson
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pydantic.alias_generators import to_camel

from passerelle.core.errors import InvalidInput
from passerelle.core.event_type import EventType
from passerelle.core.events import FRAME
from passerelle.core.payloads import PAYLOADS, Payload
from passerelle.core.wire.codec import from_wire, to_bytes, to_wire, wire_schema
from tests.support.payloads import required_members, sample, values, wrong_wires

KINDS = sorted(PAYLOADS.values(), key=lambda kind: kind.type)
each_class = pytest.mark.parametrize("kind", KINDS, ids=lambda kind: str(kind.type))


def test_every_class_has_exactly_one_payload_type_and_no_type_is_left_over() -> None:
    unions = Payload.__args__
    assert sorted(kind.type for kind in unions) == sorted(EventType)
    assert len(PAYLOADS) == len(EventType) == 113


@each_class
def test_no_payload_type_claims_the_member_that_holds_the_frame(kind: type[Payload]) -> None:
    assert FRAME not in {to_camel(member.name) for member in fields(kind)}


@each_class
@pytest.mark.requirement("ENV-9")
@given(data=st.data())
@settings(max_examples=10, suppress_health_check=[HealthCheck.too_slow])
def test_a_good_payload_comes_back_unchanged(kind: type[Payload], data: st.DataObject) -> None:
    payload = data.draw(values(kind))
    wire = to_wire(payload)
    back = from_wire(kind, wire, "payload")
    assert back == payload
    assert type(back) is kind
    assert to_bytes(back) == to_bytes(payload) == orjson.dumps(wire)


@each_class
@pytest.mark.requirement("ENV-9")
def test_a_member_of_the_wrong_type_is_refused_by_name(kind: type[Payload]) -> None:
    for alias, wire in wrong_wires(kind):
        with pytest.raises(InvalidInput) as refused:
            from_wire(kind, wire, "payload")
        assert refused.value.field.startswith(f"payload.{alias}"), alias


@each_class
@pytest.mark.requirement("ENV-9")
def test_a_missing_member_is_refused_by_name(kind: type[Payload]) -> None:
    good = to_wire(sample(kind))
    for alias in required_members(kind):
        with pytest.raises(InvalidInput) as refused:
            from_wire(
                kind, {name: value for name, value in good.items() if name != alias}, "payload"
            )
        assert refused.value.field == f"payload.{alias}"


@each_class
@pytest.mark.requirement("ENV-9")
def test_a_member_that_the_class_does_not_have_is_refused_by_name(kind: type[Payload]) -> None:
    with pytest.raises(InvalidInput) as refused:
        from_wire(kind, {**to_wire(sample(kind)), "colour": "blue"}, "payload")
    assert refused.value.field == "payload.colour"


@each_class
def test_optional_members_that_are_absent_are_not_written(
    kind: type[Payload],
) -> None:
    wire = to_wire(sample(kind, whole=False))
    assert None not in wire.values()
    assert set(required_members(kind)) <= set(wire)


@each_class
def test_the_schema_names_what_the_codec_writes(kind: type[Payload]) -> None:
    schema = cast("dict[str, Any]", wire_schema(kind))
    assert set(schema.get("properties", {})) == set(to_wire(sample(kind)))
    assert set(schema.get("required", ())) == set(required_members(kind))
    assert schema["additionalProperties"] is False


@each_class
def test_every_event_class_has_a_docstring(kind: type[Payload]) -> None:
    text = (kind.__doc__ or "").strip()
    assert text
    assert not text.startswith(f"{kind.__name__}("), "the docstring that dataclass makes up"


@each_class
def test_times_and_sizes_are_whole_numbers(kind: type[Payload]) -> None:
    """A float would not survive every reader byte for byte (I4)."""
    assert float not in get_type_hints(kind).values()
