"""Flat schemas: what is accepted, what is refused, and that nothing is coerced."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from passerelle.core.approval.response_schema import (
    TEXT_SCHEMA,
    check_content,
    check_schema,
    is_blank,
)
from passerelle.core.errors import InvalidContent, InvalidInput
from passerelle.core.wire.json import Json, JsonObject

FORM: JsonObject = {
    "type": "object",
    "title": "A transfer",
    "properties": {
        "amount": {"type": "number", "minimum": 1, "maximum": 100},
        "times": {"type": "integer"},
        "sure": {"type": "boolean"},
        "speed": {"type": "string", "enum": ["slow", "fast"]},
        "code": {"type": "string", "minLength": 2, "maxLength": 4},
        "agreed": {"type": "boolean", "const": True},
    },
    "required": ["sure"],
}


def test_a_form_of_every_type_is_accepted() -> None:
    check_schema(FORM)
    check_schema(TEXT_SCHEMA)
    check_content(
        FORM,
        {
            "amount": 1.5,
            "times": 2.0,
            "sure": False,
            "speed": "fast",
            "code": "abcd",
            "agreed": True,
        },
    )


REFUSED: list[tuple[JsonObject, str]] = [
    ({"type": "string"}, "responseSchema.type"),
    ({"type": "object"}, "responseSchema.properties"),
    ({"type": "object", "properties": {}}, "responseSchema.properties"),
    ({"type": "object", "properties": {"a": True}}, "responseSchema.properties.a"),
    ({"type": "object", "properties": {"a": {}}}, "responseSchema.properties.a.type"),
    (
        {"type": "object", "properties": {"a": {"type": "object"}}},
        "responseSchema.properties.a.type",
    ),
    (
        {"type": "object", "properties": {"a": {"type": "string", "pattern": "(a+)+"}}},
        "responseSchema.properties.a.pattern",
    ),
    (
        {"type": "object", "properties": {"a": {"type": "string", "minLength": "2"}}},
        "responseSchema.properties.a.minLength",
    ),
    (
        {"type": "object", "properties": {"a": {"type": "string", "enum": "x"}}},
        "responseSchema.properties.a.enum",
    ),
    (
        {"type": "object", "properties": {"a": {"type": "string"}}, "required": ["b"]},
        "responseSchema.required",
    ),
    (
        {"type": "object", "properties": {"a": {"type": "string"}}, "required": [[]]},
        "responseSchema.required",
    ),
    (
        {"type": "object", "properties": {"a": {"type": "string"}}, "allOf": []},
        "responseSchema.allOf",
    ),
]


@pytest.mark.parametrize(("schema", "path"), REFUSED)
def test_nested_or_unknown_schema_members_are_refused_by_name(
    schema: JsonObject, path: str
) -> None:
    with pytest.raises(InvalidInput) as refusal:
        check_schema(schema)
    assert refusal.value.field == path


@pytest.mark.parametrize(
    ("content", "path"),
    [
        ({}, "content.sure"),
        ({"sure": "false"}, "content.sure"),
        ({"sure": 0}, "content.sure"),
        ({"sure": None}, "content.sure"),
        ({"sure": True, "amount": True}, "content.amount"),
        ({"sure": True, "amount": "5"}, "content.amount"),
        ({"sure": True, "amount": 0}, "content.amount"),
        ({"sure": True, "amount": 101}, "content.amount"),
        ({"sure": True, "times": 1.5}, "content.times"),
        ({"sure": True, "speed": "warp"}, "content.speed"),
        ({"sure": True, "code": "a"}, "content.code"),
        ({"sure": True, "code": "abcde"}, "content.code"),
        ({"sure": True, "agreed": False}, "content.agreed"),
        ({"sure": True, "more": 1}, "content.more"),
    ],
)
def test_an_answer_that_does_not_fit_is_refused_by_name(content: JsonObject, path: str) -> None:
    with pytest.raises(InvalidContent) as refusal:
        check_content(FORM, content)
    assert refusal.value.field == path


@pytest.mark.parametrize("value", ["true", "false", "", 0, 1, 1.0, None, [], {}])
def test_only_literal_booleans_are_booleans(value: Json) -> None:
    with pytest.raises(InvalidContent):
        check_content(FORM, {"sure": value})


def test_one_and_true_are_two_values() -> None:
    schema: JsonObject = {
        "type": "object",
        "properties": {"n": {"type": "number", "enum": [True]}},
    }
    with pytest.raises(InvalidContent):
        check_content(schema, {"n": 1})


@given(st.dictionaries(st.text(max_size=3), st.sampled_from(["", "  ", None, [], {}]), max_size=3))
def test_blank_members_make_a_blank_answer(content: dict[str, Json]) -> None:
    assert is_blank(content)
    assert not is_blank({**content, "n": 0})
    assert not is_blank({**content, "sure": False})
