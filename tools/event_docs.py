"""Draws the list of event classes from their payload types."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from dataclasses import MISSING, Field, fields, is_dataclass
from enum import Enum
from itertools import groupby
from types import UnionType
from typing import Any, Final, Literal, Union, cast, get_args, get_origin, get_type_hints

from pydantic.alias_generators import to_camel

from passerelle.core.event_type import EventType
from passerelle.core.events import FRAME, GENERATION, SCHEMA_VERSION, required_ids
from passerelle.core.facts import Ref
from passerelle.core.payloads import PAYLOADS

_ROWS: Final = {
    "session.": "EVC-1",
    "thread.": "EVC-2",
    "turn.": "EVC-3",
    "task.": "EVC-4",
    "run.": "EVC-5",
    "model.": "EVC-6",
    "reasoning.": "EVC-7",
    "tool.catalog.": "EVC-8",
    "tool.": "EVC-9",
    "action.": "EVC-10",
    "queue.": "EVC-11",
    "context.": "EVC-12",
    "context.compaction.": "EVC-13",
    "artifact.": "EVC-14",
    "evidence.": "EVC-15",
    "subagent.": "EVC-16",
    "limit.": "EVC-17",
    "snapshot.updated": "EVC-18",
    "runtime.": "EVC-19",
    "permission.": "EXT-1",
    "sandbox.": "EXT-2",
    "hook.": "EXT-3",
    "policy.": "EXT-3",
    "process.": "EXT-4",
    "task.profile.": "EXT-5",
    "routing.": "EXT-5",
    "task.delegated": "EXT-6",
    "task.dependency.": "EXT-6",
    "task.attempt.": "EXT-6",
    "cost.": "EXT-7",
    "rate_limit.": "EXT-7",
    "quota.": "EXT-7",
    "channel.": "EXT-8",
    "job.": "EXT-9",
    "output.": "EXT-10",
    "history.": "EXT-11",
    "snapshot.repaired": "EXT-11",
}
"""The requirement row of each class: that of the longest prefix."""

_WORDS: Final[dict[object, str]] = {str: "text", int: "integer", bool: "boolean", Any: "any"}
_INTRODUCTION: Final = f"""# Events

Generated from the payload types in `core/payloads/` by `make generate`. The JSON Schema is
[events.schema.json](../protocol/events.schema.json).

Every event is one envelope of schema version {SCHEMA_VERSION}: `sequence`, `eventId`, `type`, `timestamp`,
`schemaVersion`, `runtimeId`, its scope ids, `refs`, and last the `payload`. The column *needs* lists the required
ids of a class; `sessionId` is always present. A member with a question mark is optional. If callers
over A2A see the event, the last member of its payload is `{FRAME}`, their A2A frame, and the member
`{GENERATION}` is its 1-based position among the events of their task.

A reader ignores unknown types and members. Vendor types begin with `x.` and only accompany standard events.
Within a major schema version members may be added; none is removed or changes its meaning.
"""


def render_events() -> str:
    """``docs/reference/events.md``: a table for each family, then the shapes that payloads share."""
    parts = [_INTRODUCTION]
    for row, kinds in groupby(_in_rows(), key=read_row):
        table = "| class | what it says | needs | payload |\n|---|---|---|---|\n"
        parts.append(f"## {row}\n\n{table}" + "".join(map(_draw_class, kinds)))
    table = "| shape | what it is | members |\n|---|---|---|\n"
    parts.append(f"## Shapes\n\n{table}" + "".join(map(_draw_shape, _shapes())))
    return "\n".join(parts)


def read_row(kind: EventType) -> str:
    """The requirement row that asks for a class."""
    return _ROWS[max((prefix for prefix in _ROWS if kind.startswith(prefix)), key=len)]


def _in_rows() -> list[EventType]:
    order = list(dict.fromkeys(_ROWS.values()))
    return sorted(EventType, key=lambda kind: order.index(read_row(kind)))


def _draw_class(kind: EventType) -> str:
    payload = PAYLOADS[kind]
    needs = " ".join(f"`{to_camel(name)}`" for name in required_ids(kind))
    return f"| `{kind}` | {_summary(payload)} | {needs} | {_draw_members(payload)} |\n"


def _draw_shape(shape: type[Any]) -> str:
    return f"| {shape.__name__} | {_summary(shape)} | {_draw_members(shape)} |\n"


def _draw_members(kind: type[Any]) -> str:
    hints = get_type_hints(kind)
    return "<br>".join(
        f"`{to_camel(member.name)}{'' if _is_required(member) else '?'}` {_draw_type(hints[member.name])}"
        for member in fields(kind)
    )


def _draw_type(hint: object) -> str:
    word = _WORDS.get(hint)
    if word is not None:
        return word
    origin, inner = get_origin(hint), get_args(hint)
    if origin is Literal:
        return " ".join(f"`{word}`" for word in inner)
    if origin in {Union, UnionType}:
        return " or ".join(_draw_type(choice) for choice in inner if choice is not type(None))
    if origin is tuple:
        return f"list of {_draw_type(inner[0])}"
    if origin is dict:
        return "object" if inner[1] is Any else f"object of {_draw_type(inner[1])}"
    return _draw_record(cast("type[object]", hint))


def _draw_record(kind: type[object]) -> str:
    if issubclass(kind, Enum):
        return " ".join(f"`{word.value}`" for word in kind)
    return kind.__name__


def _shapes() -> list[type[Any]]:
    found = {shape for payload in (*PAYLOADS.values(), Ref) for shape in _inside(payload)} | {Ref}
    return sorted(found, key=lambda shape: shape.__name__)


def _inside(hint: object) -> Iterator[type[Any]]:
    """Every record that a type is made of, itself not counted."""
    inner = get_type_hints(hint).values() if is_dataclass(hint) else get_args(hint)
    for part in inner:
        if is_dataclass(part):
            yield cast("type[Any]", part)
        yield from _inside(part)


def _summary(kind: type[Any]) -> str:
    return " ".join((inspect.getdoc(kind) or "").replace("``", "`").replace("|", "\\|").split())


def _is_required(member: Field[Any]) -> bool:
    return member.default is MISSING and member.default_factory is MISSING
