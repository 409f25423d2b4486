"""Generates the encoder of a record class: one function per class, from the types of its members.

Members that are JSON already are passed through, JSON content too. Others are converted by type: records, and tuples
and mappings of them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from enum import Enum
from functools import cache
from types import NoneType, UnionType
from typing import (
    TYPE_CHECKING,
    Any,
    Final,
    Literal,
    TypeAlias,
    Union,
    cast,
    get_args,
    get_origin,
    get_type_hints,
)

from pydantic.alias_generators import to_camel

from passerelle.core.wire.generated import make_function

if TYPE_CHECKING:
    from dataclasses import Field

    from _typeshed import DataclassInstance

    from passerelle.core.wire.json import Json, JsonObject

Encoder: TypeAlias = "Callable[[Any], JsonObject]"
Converter: TypeAlias = Callable[[Any], Any]

_LEAVES: Final = frozenset({str, int, float, bool, NoneType})


@cache
def make_encoder(kind: type[DataclassInstance]) -> Encoder:
    """The function from a value of the class to its camelCase object, members in class order.

    A None member is left out if None is its default.
    """
    hints = get_type_hints(kind)
    known: dict[str, object] = {}
    lines = ["wire = {}"]
    for member in fields(kind):
        lines += _write_member(member, hints[member.name], known)
    return cast("Encoder", make_function("encode(value)", [*lines, "return wire"], known))


def _write_member(member: Field[Any], hint: object, known: dict[str, object]) -> list[str]:
    name = member.name
    convert = _choose_converter(hint)
    written = f"wire[{to_camel(name)!r}] = "
    value = "member"
    if convert is not None:
        known[f"convert_{name}"] = convert
        value = f"convert_{name}(member)"
    if NoneType not in get_args(hint):
        return [written + value.replace("member", f"value.{name}")]
    if member.default is None:
        return [f"member = value.{name}", f"if member is not None: {written}{value}"]
    return [
        f"member = value.{name}",
        f"{written}{value} if member is not None else None" if convert else f"{written}member",
    ]


def _choose_converter(hint: object) -> Converter | None:
    """The converter of a type to JSON; None if its values are JSON already."""
    if is_leaf(hint):
        return None
    if isinstance(hint, type) and hasattr(hint, "__dataclass_fields__"):
        return make_encoder(cast("type[DataclassInstance]", hint))
    origin, inner = get_origin(hint), get_args(hint)
    if origin in {Union, UnionType} and len(inner) == 2 and NoneType in inner:  # noqa: PLR2004  a type or None
        return _choose_converter(inner[0] if inner[1] is NoneType else inner[1])
    if origin is tuple and inner[1:] == (...,):
        return _convert_items(inner[0])
    if origin is dict:
        return _convert_named(inner[1])
    return convert_any


def _convert_items(hint: object) -> Converter:
    convert = _choose_converter(hint)
    if convert is None:
        return list
    return lambda items: [convert(item) for item in items]


def _convert_named(hint: object) -> Converter | None:
    convert = _choose_converter(hint)
    if convert is None:
        return None
    return lambda named: {name: convert(item) for name, item in named.items()}


def is_leaf(hint: object) -> bool:
    """Whether all values of a type are JSON already: enum values are texts, and ``Any`` holds JSON."""
    if get_origin(hint) in {Union, UnionType}:
        return all(map(is_leaf, get_args(hint)))
    if hint is Any or get_origin(hint) is Literal:
        return True
    return isinstance(hint, type) and (hint in _LEAVES or issubclass(hint, Enum))


def convert_any(member: object) -> Json:
    """Converts a value by its runtime type, if its declared type is not enough."""
    if member is None or isinstance(member, str | int | float):
        return member
    if isinstance(member, tuple | list):
        return [convert_any(item) for item in cast("Sequence[object]", member)]
    if isinstance(member, dict):
        named = cast("Mapping[str, object]", member)
        return {name: convert_any(item) for name, item in named.items()}
    return make_encoder(cast("type[DataclassInstance]", type(member)))(member)
