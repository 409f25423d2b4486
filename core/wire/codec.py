"""Converts typed values to their wire form and back: camelCase JSON, members in class order.

A None member is left out if None is its default, so decoding restores it.

One pair of functions serves payloads, records and commands. Both directions are generated once per class, from the
types of its members. Decoding validates strictly, and names the wrong field.
"""

from __future__ import annotations

from collections.abc import Hashable
from functools import cache
from typing import TYPE_CHECKING, Any, TypeVar, cast

import orjson
from pydantic import TypeAdapter, ValidationError

from passerelle.core.errors import InvalidInput
from passerelle.core.wire.encoder import make_encoder
from passerelle.core.wire.wire_faults import (
    UNKNOWN,
    describe_fault,
    list_members,
    list_unknown,
)

if TYPE_CHECKING:
    from _typeshed import DataclassInstance
    from pydantic_core import ErrorDetails

    from passerelle.core.wire.json import Json, JsonObject

T = TypeVar("T")


def to_wire(value: DataclassInstance) -> JsonObject:
    """The camelCase object of a record; nested records are converted, JSON content is not copied."""
    return make_encoder(type(value))(value)


def to_bytes(value: DataclassInstance) -> bytes:
    """The wire form as bytes: equal values with equal mapping order give equal bytes."""
    return orjson.dumps(to_wire(value))


def from_bytes(kind: type[T], content: bytes, at: str = "", *, newer: bool = False) -> T:
    """The typed value of wire bytes; with ``newer``, unknown members are ignored.

    Raises:
        InvalidInput: a field is missing, unknown or of the wrong type; ``field`` is its path below ``at``.
    """
    try:
        return _adapter(kind).validate_json(content, extra="ignore" if newer else None)
    except ValidationError as error:
        faults = error.errors(include_url=False)
        first = faults[0]
        path = ".".join([at, *(str(step) for step in first["loc"])]).strip(".")
        raise InvalidInput(path or kind.__name__, _explain(kind, faults)) from None


def from_wire(kind: type[T], wire: Json, at: str = "", *, newer: bool = False) -> T:
    """The typed value of a parsed wire object. Raises like ``from_bytes``."""
    return from_bytes(kind, orjson.dumps(wire), at, newer=newer)


def wire_schema(kind: type[object]) -> JsonObject:
    """The JSON Schema of a record's wire form."""
    return cast("JsonObject", _adapter(kind).json_schema(by_alias=True))


def _explain(kind: type[object], faults: list[ErrorDetails]) -> str:
    first = faults[0]
    if first["type"] in UNKNOWN:
        schema = _find_schema(cast("Hashable", kind))
        return describe_fault(first, list_members(schema, first["loc"][:-1]))
    return describe_fault(first, list_unknown(faults, first["loc"][:-1]))


@cache
def _find_schema(kind: Hashable) -> JsonObject:
    return wire_schema(cast("type[object]", kind))


def _adapter(kind: type[T]) -> TypeAdapter[T]:
    return _make_adapter(cast("Hashable", kind))


@cache
def _make_adapter(kind: Hashable) -> TypeAdapter[Any]:
    return TypeAdapter(cast("type[object]", kind))
