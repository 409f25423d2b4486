"""Between typed values and their wire form: camelCase JSON, members in the order of their class.

A member that is None is left out where None is its default, so that reading gives it back.

One pair of functions serves payloads, records and commands. Encoding is a plan per class, made once;
decoding validates strictly, names the field that is wrong, and is made from the same classes.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import fields
from functools import cache
from typing import TYPE_CHECKING, Any, Final, TypeVar, cast

import orjson
from pydantic import TypeAdapter, ValidationError
from pydantic.alias_generators import to_camel

from passerelle.core.errors import InvalidInput

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

    from passerelle.core.json import Json, JsonObject

T = TypeVar("T")

_LEAVES: Final = frozenset({str, int, float, bool, type(None)})


def to_wire(value: DataclassInstance) -> JsonObject:
    """The camelCase object of a record; mappings and tuples inside are converted as well."""
    wire: JsonObject = {}
    for name, alias, written in _plan(type(value)):
        member = getattr(value, name)
        if member is not None or written:
            wire[alias] = member if type(member) in _LEAVES else _convert(member)
    return wire


def to_bytes(value: DataclassInstance) -> bytes:
    """The wire form as bytes: the same value, its mappings in the same order, always gives the same bytes."""
    return orjson.dumps(to_wire(value))


def from_bytes(kind: type[T], content: bytes, at: str = "", *, newer: bool = False) -> T:
    """The typed value of wire bytes; with ``newer``, members that this version does not know are passed over.

    Raises:
        InvalidInput: a field is missing, unknown or of the wrong type; ``field`` is its path below ``at``.
    """
    try:
        return _adapter(kind).validate_json(content, extra="ignore" if newer else None)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        path = ".".join([at, *(str(step) for step in first["loc"])]).strip(".")
        raise InvalidInput(path or kind.__name__, first["msg"].lower()) from None


def from_wire(kind: type[T], wire: Json, at: str = "", *, newer: bool = False) -> T:
    """The typed value of a parsed wire object. Raises like ``from_bytes``."""
    return from_bytes(kind, orjson.dumps(wire), at, newer=newer)


def wire_schema(kind: type[object]) -> JsonObject:
    """The JSON Schema of a record, as it stands on the wire."""
    return cast("JsonObject", _adapter(kind).json_schema(by_alias=True))


@cache
def _plan(kind: type[DataclassInstance]) -> tuple[tuple[str, str, bool], ...]:
    """Name, wire name, and whether None is written."""
    return tuple(
        (member.name, to_camel(member.name), member.default is not None) for member in fields(kind)
    )


def _convert(member: object) -> Json:
    if isinstance(member, str):  # a word of an enum, by far the most frequent
        return member
    if isinstance(member, tuple | list):
        items = cast("Sequence[Json]", member)
        return [item if type(item) in _LEAVES else _convert(item) for item in items]
    if isinstance(member, dict):
        named = cast("Mapping[str, Json]", member)
        return {
            name: item if type(item) in _LEAVES else _convert(item) for name, item in named.items()
        }
    return to_wire(cast("DataclassInstance", member))


def _adapter(kind: type[T]) -> TypeAdapter[T]:
    return _make_adapter(cast("Hashable", kind))


@cache
def _make_adapter(kind: Hashable) -> TypeAdapter[Any]:
    return TypeAdapter(cast("type[object]", kind))
