"""Flat schemas of answers: the part of JSON Schema that a form on a phone can show.

An object whose members are texts, numbers, whole numbers or booleans. An unknown keyword is refused, so no answer
passes unchecked. Nothing is coerced: ``"false"`` is not a boolean, and ``True`` is not a number.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final, cast

from passerelle.core.errors import InvalidContent, InvalidInput
from passerelle.core.wire.json import Json, JsonObject

PROPERTY_LIMIT: Final = 32
TEXT_SCHEMA: Final[JsonObject] = {
    "type": "object",
    "properties": {"text": {"type": "string", "minLength": 1}},
    "required": ["text"],
    "additionalProperties": False,
}
"""The schema of an answer in plain words."""

_NOTES: Final = frozenset({"title", "description", "default", "$schema"})
_ROOT: Final = _NOTES | {"type", "properties", "required", "additionalProperties"}
_LIMITS: Final[Mapping[str, frozenset[str]]] = {
    "string": frozenset({"enum", "const", "minLength", "maxLength"}),
    "number": frozenset({"enum", "const", "minimum", "maximum"}),
    "integer": frozenset({"enum", "const", "minimum", "maximum"}),
    "boolean": frozenset({"enum", "const"}),
}


def check_schema(schema: JsonObject) -> None:
    """Refuses a schema that is not flat, or uses an unsupported keyword.

    Raises:
        InvalidInput: ``field`` is the path in the schema.
    """
    _refuse_unknown(schema, _ROOT, "responseSchema")
    if schema.get("type") != "object":
        raise InvalidInput("responseSchema.type", "must be object")
    members = schema.get("properties")
    if not isinstance(members, dict) or not 0 < len(members) <= PROPERTY_LIMIT:
        raise InvalidInput("responseSchema.properties", f"must have 1 to {PROPERTY_LIMIT} members")
    for name, member in members.items():
        _check_member(member, f"responseSchema.properties.{name}")
    required = schema.get("required", [])
    if not isinstance(required, list) or not all(
        isinstance(name, str) and name in members for name in required
    ):
        raise InvalidInput("responseSchema.required", "must be names of properties")


def check_content(schema: JsonObject, content: JsonObject) -> None:
    """Checks an answer against a schema that ``check_schema`` accepted.

    Raises:
        InvalidContent: ``field`` is the path, such as ``content.amount``.
    """
    members = cast("dict[str, JsonObject]", schema["properties"])
    for name in cast("list[str]", schema.get("required", [])):
        if name not in content:
            raise InvalidContent(f"content.{name}", "is missing")
    for name, value in content.items():
        if name not in members:
            raise InvalidContent(f"content.{name}", "was not asked for")
        reason = _find_fault(members[name], value)
        if reason:
            raise InvalidContent(f"content.{name}", reason)


def is_blank(content: JsonObject) -> bool:
    """Whether an answer has no member, or only blank ones."""
    return all(
        value is None or value in ("", [], {}) or (isinstance(value, str) and not value.strip())
        for value in content.values()
    )


def _check_member(member: Json, path: str) -> None:
    if not isinstance(member, dict):
        raise InvalidInput(path, "must be an object")
    kind = member.get("type")
    if not isinstance(kind, str) or kind not in _LIMITS:
        raise InvalidInput(f"{path}.type", "must be string, number, integer or boolean")
    _refuse_unknown(member, _LIMITS[kind] | _NOTES | {"type"}, path)
    if "enum" in member and not isinstance(member["enum"], list):
        raise InvalidInput(f"{path}.enum", "must be a list")
    for name in ("minLength", "maxLength", "minimum", "maximum"):
        if name in member and not _is_number(member[name]):
            raise InvalidInput(f"{path}.{name}", "must be a number")


def _refuse_unknown(schema: JsonObject, known: frozenset[str], path: str) -> None:
    for name in schema:
        if name not in known:
            raise InvalidInput(f"{path}.{name[:60]}", "is not supported here")


def _is_number(value: Json) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _is_whole(value: Json) -> bool:
    return _is_number(value) and float(cast("float", value)).is_integer()


_TYPES: Final[Mapping[str, tuple[str, Callable[[Json], bool]]]] = {
    "string": ("must be a text", lambda value: isinstance(value, str)),
    "number": ("must be a number", _is_number),
    "integer": ("must be a whole number", _is_whole),
    "boolean": ("must be true or false", lambda value: isinstance(value, bool)),
}


def _find_fault(member: JsonObject, value: Json) -> str | None:
    message, fits = _TYPES[cast("str", member["type"])]
    if not fits(value):
        return message
    if not _is_listed(member, value):
        return "is not one of the values that were offered"
    if isinstance(value, str):
        return _find_bound(member, len(value), "minLength", "maxLength", "characters")
    if _is_number(value):
        return _find_bound(member, cast("float", value), "minimum", "maximum", "in value")
    return None


def _is_listed(member: JsonObject, value: Json) -> bool:
    offered = cast("list[Json]", member.get("enum", [value]))
    offered = [member["const"]] if "const" in member else offered
    # True == 1 in Python, but they are different JSON values.
    return any(isinstance(one, bool) is isinstance(value, bool) and one == value for one in offered)


def _find_bound(member: JsonObject, size: float, low: str, high: str, unit: str) -> str | None:
    if low in member and size < cast("float", member[low]):
        return f"must be at least {member[low]} {unit}"
    if high in member and size > cast("float", member[high]):
        return f"must be at most {member[high]} {unit}"
    return None
