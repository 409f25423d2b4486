"""Describes a wrong member of an input, in words without library or language terms.

A reason continues the path of the member: ``priority: should be a whole number``. The codes and values are those of
pydantic-core, which parses the bytes; a kind of fault that is not in the table keeps its own sentence.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, cast

from passerelle.core.wire.near import find_near

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from pydantic_core import ErrorDetails

    from passerelle.core.wire.json import JsonObject

UNKNOWN: Final = frozenset({"unexpected_keyword_argument", "extra_forbidden"})
"""Kinds of fault for an unknown member."""
SHOWN: Final = 40
"""Characters of a foreign name that are repeated."""
_REQUIRED: Final = "is required"
PLAIN: Final[Mapping[str, str]] = {
    "missing": _REQUIRED,
    "missing_argument": _REQUIRED,
    "missing_keyword_only_argument": _REQUIRED,
    "missing_positional_only_argument": _REQUIRED,
    "string_type": "should be a text",
    "bytes_type": "should be a text",
    "string_unicode": "is not valid Unicode",
    "int_type": "should be a whole number",
    "int_from_float": "should be a whole number",
    "int_parsing": "should be a whole number",
    "int_parsing_size": "is too large a number",
    "float_type": "should be a number",
    "float_parsing": "should be a number",
    "finite_number": "should be a finite number",
    "bool_type": "should be true or false",
    "bool_parsing": "should be true or false",
    "list_type": "should be a list",
    "tuple_type": "should be a list",
    "set_type": "should be a list",
    "frozen_set_type": "should be a list",
    "dict_type": "should be an object",
    "mapping_type": "should be an object",
    "model_type": "should be an object",
    "model_attributes_type": "should be an object",
    "dataclass_type": "should be an object",
    "dataclass_exact_type": "should be an object",
    "arguments_type": "should be an object",
    "none_required": "should be null",
    "is_instance_of": "has another type",
    "invalid_key": "has a name that is not a text",
    "recursion_loop": "is nested too deeply",
}
WITH_VALUES: Final[Mapping[str, str]] = {
    "literal_error": "should be {expected}",
    "enum": "should be {expected}",
    "greater_than": "should be more than {gt}",
    "greater_than_equal": "should be {ge} or more",
    "less_than": "should be less than {lt}",
    "less_than_equal": "should be {le} or less",
    "multiple_of": "should be a multiple of {multiple_of}",
    "string_too_short": "should have {min_length} or more characters",
    "string_too_long": "should have {max_length} characters or fewer",
    "string_pattern_mismatch": "should match {pattern}",
    "too_short": "should have {min_length} or more items",
    "too_long": "should have {max_length} items or fewer",
    "json_invalid": "is not JSON: {error}",
    "union_tag_invalid": "should be {expected_tags} in {discriminator}",
    "union_tag_not_found": "wants {discriminator}",
}
_VALUE_ERROR: Final = "Value error, "


def describe_fault(fault: ErrorDetails, others: Collection[str] = ()) -> str:
    """The reason; ``others`` are members that may have been meant.

    For an unknown member those are the known ones, for a missing one the unknown ones in the input.
    """
    kind = fault["type"]
    if kind in UNKNOWN:
        near = find_near(str(fault["loc"][-1]), others) if fault["loc"] else None
        return f"is not known here; did you mean {near}?" if near else "is not known here"
    if (plain := PLAIN.get(kind)) is not None:
        near = find_near(str(fault["loc"][-1]), others) if plain == _REQUIRED else None
        return f"{plain}; is {near[:SHOWN]!r} meant?" if near else plain
    values: dict[str, Any] = fault.get("ctx") or {}
    if kind in WITH_VALUES:
        return WITH_VALUES[kind].format_map(values)
    sentence = fault["msg"].removeprefix(_VALUE_ERROR).replace("Input should", "should", 1)
    # "URL" keeps its capitals.
    return sentence if sentence[:2].isupper() else sentence[:1].lower() + sentence[1:]


def list_unknown(faults: Sequence[ErrorDetails], path: tuple[str | int, ...]) -> tuple[str, ...]:
    """The unknown members of the object at ``path``."""
    return tuple(
        str(fault["loc"][-1])
        for fault in faults
        if fault["type"] in UNKNOWN and fault["loc"][:-1] == path
    )


def list_members(schema: JsonObject, path: tuple[str | int, ...]) -> tuple[str, ...]:
    """The members that its JSON Schema allows an object at ``path``; empty if the schema defines none."""
    place: object = schema
    for step in path:
        here = _resolve(schema, place)
        if isinstance(step, int):
            place = here.get("items")
        else:
            members = here.get("properties")
            place = members.get(step) if isinstance(members, dict) else None
    found = _resolve(schema, place).get("properties")
    return tuple(found) if isinstance(found, dict) else ()


def _resolve(schema: JsonObject, place: object) -> JsonObject:
    """The target of a reference, also of an optional one."""
    here = cast("JsonObject", place) if isinstance(place, dict) else {}
    options = here.get("anyOf")
    for option in (here, *(options if isinstance(options, list) else ())):
        name = option.get("$ref") if isinstance(option, dict) else None
        if isinstance(name, str):
            definitions = schema.get("$defs")
            found = (
                definitions.get(name.rpartition("/")[2]) if isinstance(definitions, dict) else None
            )
            return found if isinstance(found, dict) else {}
    return here
