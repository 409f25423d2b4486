"""Between typed values and their wire form: camelCase JSON, members in the order of their class.

A member that is None is left out where None is its default, so that reading gives it back.

One pair of functions serves payloads, records and commands. Encoding is a plan per class, made once from the types of
its members: what JSON takes as it is goes over in one sweep, and only the rest is looked at one by one. Decoding
validates strictly, names the field that is wrong, and is made from the same classes.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, fields
from enum import Enum
from functools import cache
from operator import attrgetter
from types import UnionType
from typing import (
    TYPE_CHECKING,
    Any,
    Final,
    Literal,
    TypeVar,
    Union,
    cast,
    get_args,
    get_origin,
    get_type_hints,
)

import orjson
from pydantic import TypeAdapter, ValidationError
from pydantic.alias_generators import to_camel

from passerelle.core.errors import InvalidInput

if TYPE_CHECKING:
    from collections.abc import Callable

    from _typeshed import DataclassInstance

    from passerelle.core.json import Json, JsonObject

T = TypeVar("T")

_LEAVES: Final = frozenset({str, int, float, bool, type(None)})


@dataclass(frozen=True, slots=True)
class _Plan:
    """How the members of a class are written: ``aliases`` in their order, for what ``read`` gives."""

    read: Callable[[object], tuple[object, ...]]
    aliases: tuple[str, ...]
    kept: frozenset[str]
    """Members whose None is written, since it is not their default."""
    nested: tuple[str, ...]
    """Members that are not JSON yet."""


def to_wire(value: DataclassInstance) -> JsonObject:
    """The camelCase object of a record; mappings and tuples inside are converted as well."""
    plan = _plan(type(value))
    kept = plan.kept
    wire: JsonObject = {
        alias: cast("Json", member)
        for alias, member in zip(plan.aliases, plan.read(value), strict=True)
        if member is not None or alias in kept
    }
    for alias in plan.nested:
        if alias in wire:
            wire[alias] = _convert(wire[alias])
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
def _plan(kind: type[DataclassInstance]) -> _Plan:
    members = fields(kind)
    hints = get_type_hints(kind)
    return _Plan(
        read=_make_reader([member.name for member in members]),
        aliases=tuple(to_camel(member.name) for member in members),
        kept=frozenset(to_camel(member.name) for member in members if member.default is not None),
        nested=tuple(
            to_camel(member.name) for member in members if not _is_leaf(hints[member.name])
        ),
    )


def _make_reader(names: list[str]) -> Callable[[object], tuple[object, ...]]:
    """All members at once; ``attrgetter`` gives a tuple for two names or more."""
    match names:
        case []:
            return lambda _value: ()
        case [name]:
            return lambda value: (getattr(value, name),)
        case _:
            return attrgetter(*names)


def _is_leaf(hint: object) -> bool:
    """Whether JSON takes every value of a type as it is; a word of an enum is a text."""
    if get_origin(hint) in {Union, UnionType}:
        return all(map(_is_leaf, get_args(hint)))
    if get_origin(hint) is Literal:
        return True
    return isinstance(hint, type) and (hint in _LEAVES or issubclass(hint, Enum))


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
