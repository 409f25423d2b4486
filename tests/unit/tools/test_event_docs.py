"""The generated tables of events contain each of them exactly once."""

import json
import re
from typing import Any, cast

from passerelle.core.event_type import EventType
from passerelle.core.payloads import PAYLOADS
from passerelle.core.wire.codec import to_wire
from tests.support.payloads import sample
from tools.event_docs import read_row, render_events
from tools.event_schema import render_event_schema

ROWS = [f"EVC-{n}" for n in range(1, 20)] + [f"EXT-{n}" for n in range(1, 12)]


def read_schema() -> dict[str, Any]:
    return cast("dict[str, Any]", json.loads(render_event_schema()))


def find_refs(value: object) -> set[str]:
    if isinstance(value, list):
        return {ref for item in cast("list[object]", value) for ref in find_refs(item)}
    if not isinstance(value, dict):
        return set()
    named = cast("dict[str, object]", value)
    own = {str(named["$ref"])} if "$ref" in named else set[str]()
    return own | {ref for item in named.values() for ref in find_refs(item)}


def test_every_event_class_is_in_the_table_once() -> None:
    drawn = re.findall(r"^\| `([a-z_.]+)` \|", render_events(), re.MULTILINE)
    assert sorted(drawn) == sorted(EventType)


def test_every_row_has_a_table_and_every_table_a_class() -> None:
    assert re.findall(r"^## (E\S+)$", render_events(), re.MULTILINE) == ROWS
    assert {read_row(kind) for kind in EventType} == set(ROWS)


def test_a_class_that_two_rows_could_claim_goes_to_the_nearer_one() -> None:
    assert read_row(EventType.TASK_ATTEMPT_STARTED) == "EXT-6"
    assert read_row(EventType.TASK_CREATED) == "EVC-4"
    assert read_row(EventType.SNAPSHOT_UPDATED) == "EVC-18"
    assert read_row(EventType.SNAPSHOT_REPAIRED) == "EXT-11"


def test_every_shape_that_a_payload_names_is_explained() -> None:
    text = render_events()
    named = set(re.findall(r"` (?:list of |object of )?([A-Z]\w+)", text))
    explained = set(re.findall(r"^\| ([A-Z]\w+) \|", text, re.MULTILINE))
    assert named
    assert named | {"Ref"} == explained | {"Ref"}


def test_every_row_of_a_table_has_the_columns_of_its_head() -> None:
    for line in render_events().splitlines():
        if line.startswith("| "):
            assert line.replace("\\|", "").count("|") in {4, 5}, line


def test_the_schema_has_one_branch_for_each_class_and_one_for_vendors() -> None:
    *known, vendor = (branch["properties"]["type"] for branch in read_schema()["oneOf"])
    assert [kind["const"] for kind in known] == list(EventType)
    assert vendor == {"pattern": "^x\\..+"}


def test_every_reference_of_the_schema_leads_somewhere_and_nothing_is_left_over() -> None:
    schema = read_schema()
    assert find_refs(schema) == {f"#/$defs/{name}" for name in schema["$defs"]}


def test_the_schema_knows_each_member_of_each_payload_and_the_frame() -> None:
    definitions = read_schema()["$defs"]
    for payload in PAYLOADS.values():
        definition = definitions[payload.__name__]
        assert set(definition["properties"]) == {*to_wire(sample(payload)), "a2a"}
        assert definition["additionalProperties"] is False


def test_a_member_called_title_is_not_taken_for_a_title() -> None:
    assert "title" in read_schema()["$defs"]["TaskCreated"]["properties"]


def test_drawing_twice_gives_the_same() -> None:
    assert (render_events(), render_event_schema()) == (render_events(), render_event_schema())
