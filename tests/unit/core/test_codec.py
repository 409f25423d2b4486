"""The codec: strict input, exact output, the same bytes for the same value."""

from dataclasses import field
from enum import StrEnum
from typing import Literal

import orjson
import pytest
from hypothesis import given

from passerelle.core.errors import InvalidInput
from passerelle.core.wire.codec import from_bytes, from_wire, to_bytes, to_wire, wire_schema
from passerelle.core.wire.json import Json, JsonObject
from passerelle.core.wire.record import record
from tests.support.payloads import JSON, JSON_OBJECTS, values


class Colour(StrEnum):
    RED = "red"
    DEEP_BLUE = "deep_blue"


@record
class Leaf:
    leaf_name: str
    size_bytes: int | None = None


@record
class Tree:
    tree_id: str
    nothing_yet: str | None
    colour: Colour = Colour.RED
    kind: Literal["oak", "elm"] | None = None
    limit: int | None = 3
    leaves: tuple[Leaf, ...] = ()
    by_name: dict[str, Leaf] = field(default_factory=dict[str, Leaf])
    counts: dict[str, int] = field(default_factory=dict[str, int])
    words: tuple[str, ...] = ()
    content: JsonObject = field(default_factory=dict[str, Json])
    only: Leaf | None = None


@given(tree=values(Tree))
def test_any_record_comes_back_as_it_was(tree: Tree) -> None:
    assert from_bytes(Tree, to_bytes(tree)) == tree
    assert from_wire(Tree, to_wire(tree)) == tree
    assert to_bytes(from_bytes(Tree, to_bytes(tree))) == to_bytes(tree)


@given(content=JSON_OBJECTS)
def test_free_json_passes_untouched_with_its_nulls_and_its_order(content: JsonObject) -> None:
    tree = Tree("t", None, content=content)
    back = from_bytes(Tree, to_bytes(tree)).content
    assert orjson.dumps(back) == orjson.dumps(content)


def test_members_are_written_in_class_order_and_camel_case() -> None:
    tree = Tree("t", None, leaves=(Leaf("l", 4),), by_name={"snake_key": Leaf("m")})
    assert to_bytes(tree) == (
        b'{"treeId":"t","nothingYet":null,"colour":"red","limit":3,'
        b'"leaves":[{"leafName":"l","sizeBytes":4}],"byName":{"snake_key":{"leafName":"m"}},'
        b'"counts":{},"words":[],"content":{}}'
    )


def test_none_is_left_out_only_where_reading_gives_it_back() -> None:
    wire = to_wire(Tree("t", None, limit=None))
    assert wire["nothingYet"] is None, "it has no default"
    assert wire["limit"] is None, "its default is not None"
    assert "kind" not in wire
    assert "only" not in wire


@pytest.mark.parametrize(
    ("change", "path"),
    [
        ({"treeId": 7}, "tree.treeId"),
        ({"treeId": None}, "tree.treeId"),
        ({"colour": "green"}, "tree.colour"),
        ({"colour": "RED"}, "tree.colour"),
        ({"kind": "Oak"}, "tree.kind"),
        ({"limit": "3"}, "tree.limit"),
        ({"limit": 3.0}, "tree.limit"),
        ({"limit": True}, "tree.limit"),
        ({"words": "abc"}, "tree.words"),
        ({"words": ["a", 1]}, "tree.words.1"),
        ({"leaves": [{"leafName": "l"}, {"leafName": 1}]}, "tree.leaves.1.leafName"),
        ({"leaves": [{"leafName": "l", "weight": 1}]}, "tree.leaves.0.weight"),
        ({"byName": {"a": {}}}, "tree.byName.a.leafName"),
        ({"counts": {"a": "1"}}, "tree.counts.a"),
        ({"content": []}, "tree.content"),
        ({"only": {"leaf_name": "snake"}}, "tree.only.leafName"),
        ({"tree_id": "snake"}, "tree.tree_id"),
    ],
)
def test_invalid_member_is_named_by_its_path(change: JsonObject, path: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        from_wire(Tree, {**to_wire(Tree("t", None)), **change}, "tree")
    assert refused.value.field == path
    assert refused.value.reason


@pytest.mark.parametrize("content", [b"", b"{", b"\xff\xfe", b"[]", b"null", b'"x"', b"{}{}"])
def test_bytes_that_are_no_record_are_refused_under_its_name(content: bytes) -> None:
    with pytest.raises(InvalidInput) as refused:
        from_bytes(Leaf, content)
    assert refused.value.field in {"Leaf", "leafName"}


@given(wire=JSON)
def test_no_json_does_more_than_be_read_or_refused(wire: Json) -> None:
    try:
        leaf = from_wire(Leaf, wire)
    except InvalidInput:
        return
    assert isinstance(wire, dict)
    assert to_wire(leaf) == {name: value for name, value in wire.items() if value is not None}


def test_a_newer_writer_may_add_members_at_any_depth() -> None:
    wire: JsonObject = {
        "treeId": "t",
        "nothingYet": None,
        "added": 1,
        "leaves": [{"leafName": "l", "weight": 1}],
        "byName": {"a": {"leafName": "m", "weight": 1}},
    }
    with pytest.raises(InvalidInput):
        from_wire(Tree, wire)
    known = Tree("t", None, leaves=(Leaf("l"),), by_name={"a": Leaf("m")})
    assert from_wire(Tree, wire, newer=True) == known
    with pytest.raises(InvalidInput):
        from_wire(Tree, {**wire, "treeId": 7}, newer=True)


def test_the_schema_is_that_of_the_wire() -> None:
    schema = wire_schema(Leaf)
    assert schema["properties"] == {
        "leafName": {"title": "Leafname", "type": "string"},
        "sizeBytes": {
            "anyOf": [{"type": "integer"}, {"type": "null"}],
            "default": None,
            "title": "Sizebytes",
        },
    }
    assert (schema["required"], schema["additionalProperties"]) == (["leafName"], False)
