"""Values that are stored or sent: frozen, and strict about their wire form.

A fold makes a new record for each fact, and a task record has some fifty members, so making and copying records is the
most frequent operation. Records therefore have no slots: their members are in one dict, which is copied as a whole,
seven times faster than filling fifty slots. Only type checkers enforce immutability: a run-time check costs three times
as much per construction.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final, TypeVar, dataclass_transform

from pydantic import ConfigDict
from pydantic.alias_generators import to_camel

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

T = TypeVar("T")
R = TypeVar("R", bound="DataclassInstance")

_CONFIG: Final = ConfigDict(alias_generator=to_camel, extra="forbid", strict=True)


@dataclass_transform(frozen_default=True)
def record(kind: type[T]) -> type[T]:
    """Makes a frozen dataclass whose wire form is camelCase and refuses unknown members (ENV-9)."""
    made = value(kind)
    made.__pydantic_config__ = _CONFIG  # type: ignore[attr-defined]  # read by pydantic, declared nowhere
    return made


@dataclass_transform(frozen_default=True)
def value(kind: type[T]) -> type[T]:
    """Makes a dataclass that type checkers treat as frozen, fast to make, read and copy.

    Raises:
        TypeError: it has a ``cached_property``; ``change`` would copy its value, computed from other members.
    """
    if any(
        isinstance(one, cached_property) for base in kind.__mro__ for one in vars(base).values()
    ):
        raise TypeError(f"{kind.__name__} keeps what it derives, and is copied with it")
    return dataclass(unsafe_hash=True)(kind)


def fill(fresh: DataclassInstance, **members: Any) -> None:  # noqa: ANN401  members of the record
    """Sets members of a new record that is not shared yet."""
    fresh.__dict__.update(members)


def change(known: R, **changes: Any) -> R:  # noqa: ANN401  members of the record
    """A copy of a record with changed members: ``dataclasses.replace`` without an initializer call.

    Raises:
        KeyError: the record has no such member.
    """
    # Merging dicts keeps the size; filling one member by member makes it grow in steps.
    made, before = object.__new__(type(known)), known.__dict__
    made.__dict__ = members = before | changes
    if len(members) != len(before):
        raise KeyError(*(changes.keys() - before.keys()))
    return made
