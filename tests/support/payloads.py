"""Values of any record, generated from its annotations: random, one sample, and one invalid per field."""

from collections.abc import Iterator
from dataclasses import MISSING, Field, fields, is_dataclass
from enum import Enum
from types import UnionType
from typing import Any, Literal, TypeVar, Union, cast, get_args, get_origin, get_type_hints

from hypothesis import strategies as st
from pydantic.alias_generators import to_camel

from passerelle.core.facts import Scope
from passerelle.core.wire.codec import to_wire
from passerelle.core.wire.json import Json, JsonObject

T = TypeVar("T")

WHOLE = st.integers(-(2**63), 2**63 - 1)
JSON: st.SearchStrategy[Json] = st.recursive(
    st.none()
    | st.booleans()
    | WHOLE
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3)
    ),
    max_leaves=6,
)
JSON_OBJECTS = st.dictionaries(st.text(max_size=4), JSON, max_size=3)
FULL_SCOPE = Scope(
    session_id="ses_1",
    thread_id="thr_1",
    turn_id="turn_1",
    task_id="task_1",
    run_id="run_1",
    step_id="step_1",
    tool_call_id="call_1",
    action_id="act_1",
    subagent_id="sub_1",
    trace_id="0af7651916cd43dd8448eb211c80319c",
    span_id="b7ad6b7169203331",
)
"""Includes every optional id, so that each class has the ids that it requires."""


def values(kind: type[T]) -> st.SearchStrategy[T]:
    """Any value of a record class, its optional members present and absent."""
    hints = get_type_hints(kind)
    members = {member.name: _any(hints[member.name]) for member in _fields(kind)}
    return st.builds(kind, **members)


def sample(kind: type[T], *, whole: bool = True) -> T:
    """One sample: the first of each choice, one item of each collection; without ``whole``, defaults stay."""
    hints = get_type_hints(kind)
    chosen = [member for member in _fields(kind) if whole or _is_required(member)]
    return kind(**{member.name: _one(hints[member.name]) for member in chosen})


def wrong_wires(kind: type[object]) -> Iterator[tuple[str, JsonObject]]:
    """For each member: its wire name, and a complete wire object in which only that member has a wrong type."""
    hints = get_type_hints(kind)
    good = to_wire(cast("Any", sample(kind)))
    for member in _fields(kind):
        alias = to_camel(member.name)
        yield alias, {**good, alias: _wrong(hints[member.name])}


def required_members(kind: type[object]) -> tuple[str, ...]:
    """The wire names of members without a default."""
    return tuple(to_camel(member.name) for member in _fields(kind) if _is_required(member))


def _fields(kind: type[object]) -> tuple[Field[Any], ...]:
    return fields(cast("Any", kind))


def _is_required(member: Field[Any]) -> bool:
    return member.default is MISSING and member.default_factory is MISSING


def _any(hint: object) -> st.SearchStrategy[Any]:
    leaves: dict[object, st.SearchStrategy[Any]] = {
        str: st.text(max_size=12),
        int: WHOLE,
        bool: st.booleans(),
        type(None): st.none(),
        Any: JSON,
    }
    if hint in leaves:
        return leaves[hint]
    origin, inner = get_origin(hint), get_args(hint)
    if origin is Literal:
        return st.sampled_from(inner)
    if origin in {Union, UnionType}:
        return st.one_of(*(_any(choice) for choice in inner))
    if origin is tuple and inner[1:] == (...,):
        return st.lists(_any(inner[0]), max_size=2).map(tuple)
    if origin is dict and inner[0] is str:
        return st.dictionaries(st.text(max_size=4), _any(inner[1]), max_size=2)
    words = _words(hint)
    return st.sampled_from(words) if words else values(_record(hint))


def _one(hint: object) -> Any:  # noqa: ANN401  the value of any annotation
    leaves: dict[object, Any] = {str: "word", int: 7, bool: True, Any: {"any": 1}}
    if hint in leaves:
        return leaves[hint]
    origin, inner = get_origin(hint), get_args(hint)
    if origin in {Literal, Union, UnionType}:
        return inner[0] if origin is Literal else _one(inner[0])
    if origin is tuple:
        return (_one(inner[0]),)
    if origin is dict:
        return {"name": _one(inner[1])}
    words = _words(hint)
    return words[0] if words else sample(_record(hint))


def _wrong(hint: object) -> Json:
    """A value of the wrong type that a lenient parser would convert to a valid one."""
    origin, inner = get_origin(hint), get_args(hint)
    if origin in {Union, UnionType}:
        # In a union with text, any other text is valid for an enumeration.
        return _wrong(str if str in inner else inner[0])
    if origin is Literal and isinstance(inner[0], int):
        return str(inner[0])
    near: dict[object, Json] = {
        str: 7,
        int: "7",
        bool: "true",
        tuple: {"0": "word"},
        dict: [["a", "b"]],
    }
    return near.get(origin or hint, "no such word")


def _words(hint: object) -> list[Enum]:
    """The members of an enum, or none when it is no enum."""
    if isinstance(hint, type) and issubclass(cast("type[object]", hint), Enum):
        return list(cast("type[Enum]", hint))
    return []


def _record(hint: object) -> type[Any]:
    if not is_dataclass(hint):
        message = f"no values are known for {hint!r}"
        raise TypeError(message)
    return cast("type[Any]", hint)
