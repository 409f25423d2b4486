"""Values that are stored or sent: frozen, and strict about their wire form.

A fold makes a new record for each fact, and a record of a task has half a hundred members, so making and copying them
is the commonest thing that happens. Records therefore have no slots: their members stand in one dict, which is copied
as a whole, seven times faster than half a hundred slots are filled. And they are made by an initializer that fills the
dict, since that of a frozen dataclass goes through ``object.__setattr__`` for each member, at three times the cost.
"""

from __future__ import annotations

from dataclasses import MISSING, dataclass, fields
from typing import TYPE_CHECKING, Any, Final, TypeVar, cast, dataclass_transform

from pydantic import ConfigDict
from pydantic.alias_generators import to_camel

from passerelle.core.generated import make_function

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

T = TypeVar("T")
R = TypeVar("R", bound="DataclassInstance")

_CONFIG: Final = ConfigDict(alias_generator=to_camel, extra="forbid", strict=True)


@dataclass_transform(frozen_default=True)
def record(kind: type[T]) -> type[T]:
    """Makes a frozen dataclass whose wire form is camelCase, without unknown members (ENV-9)."""
    made = value(kind)
    made.__pydantic_config__ = _CONFIG  # type: ignore[attr-defined]  # read by pydantic, declared nowhere
    return made


@dataclass_transform(frozen_default=True)
def value(kind: type[T]) -> type[T]:
    """Makes a frozen dataclass that is made and copied fast."""
    made = dataclass(frozen=True)(kind)
    _write_initializer(cast("type[DataclassInstance]", made))
    return made


def _write_initializer(kind: type[DataclassInstance]) -> None:
    known: dict[str, Any] = {"MISSING": MISSING}
    parameters, lines = ["self"], ["members = self.__dict__"]
    for member in fields(kind):
        name, given = member.name, member.name
        if member.default_factory is not MISSING:
            known[f"make_{name}"] = member.default_factory
            parameters.append(f"{name}=MISSING")
            given = f"make_{name}() if {name} is MISSING else {name}"
        elif member.default is not MISSING:
            known[f"default_{name}"] = member.default
            parameters.append(f"{name}=default_{name}")
        else:
            parameters.append(name)
        lines.append(f"members[{name!r}] = {given}")
    made = make_function(f"__init__({', '.join(parameters)})", lines, known)
    kind.__init__ = made  # type: ignore[method-assign]


def fill(fresh: DataclassInstance, **members: Any) -> None:  # noqa: ANN401  members of the record
    """Sets members of a record that was just made and that nobody else has seen."""
    fresh.__dict__.update(members)


def change(known: R, **changes: Any) -> R:  # noqa: ANN401  members of the record
    """A copy of a record with other members: what ``dataclasses.replace`` does, without running an initializer.

    Raises:
        KeyError: the record has no such member.
    """
    made = object.__new__(type(known))
    members, before = made.__dict__, known.__dict__
    members.update(before)
    members.update(changes)
    if len(members) != len(before):
        raise KeyError(*(changes.keys() - before.keys()))
    return made
