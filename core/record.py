"""Values that are stored or sent: frozen, slotted, and strict about their wire form.

A fold makes a new record for each fact, and a record of a task has half a hundred members, so copying one is
the commonest thing that happens to it. ``change`` does what ``dataclasses.replace`` does in a third of the time: it
fills the slots and does not run an initializer, of which a record has none of its own.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from functools import cache
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Final, TypeVar, cast, dataclass_transform

from pydantic import ConfigDict
from pydantic.alias_generators import to_camel

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from _typeshed import DataclassInstance

T = TypeVar("T")
R = TypeVar("R", bound="DataclassInstance")

_CONFIG: Final = ConfigDict(alias_generator=to_camel, extra="forbid", strict=True)


@dataclass_transform(frozen_default=True)
def record(kind: type[T]) -> type[T]:
    """Makes a frozen, slotted dataclass whose wire form is camelCase, without unknown members (ENV-9)."""
    made = dataclass(frozen=True, slots=True)(kind)
    made.__pydantic_config__ = _CONFIG  # type: ignore[attr-defined]  # read by pydantic, declared nowhere
    return made


def change(value: R, **changes: Any) -> R:  # noqa: ANN401  members of the record
    """A copy of a record with other members.

    Raises:
        KeyError: the record has no such member.
    """
    kind = type(value)
    read, slots = _plan(kind)
    made = object.__new__(kind)
    for fill, member in zip(slots.values(), read(value), strict=True):
        fill(made, member)
    for name, member in changes.items():
        slots[name](made, member)
    return made


@cache
def _plan(
    kind: type[DataclassInstance],
) -> tuple[Callable[[object], tuple[object, ...]], Mapping[str, Callable[[object, object], None]]]:
    names = [member.name for member in fields(kind)]
    read = cast("Callable[[object], tuple[object, ...]]", attrgetter(*names))
    return read, {name: getattr(kind, name).__set__ for name in names}
