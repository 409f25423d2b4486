"""The stored form of a task's edges: the first ones in its snapshot, the others in separate hash fields.

In memory a record has all of its edges, so folds, decisions and readers know no limit. A write stores only changed
edges in the hash, however many there are. A changed edge moves to the end, so the edges in the fields are ordered by
their numbers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from passerelle.core.task.record import Edge, TaskRecord
from passerelle.core.wire.codec import from_bytes, to_bytes
from passerelle.core.wire.record import change

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

KEPT_EDGES: Final = 32
"""Edges in the snapshot, those unchanged for longest; keeps it small."""
_FIELD: Final = "edge:"


def cut(task: TaskRecord) -> TaskRecord:
    """The record as its snapshot holds it."""
    if len(task.relationships) <= KEPT_EDGES:
        return task
    return change(task, relationships=task.relationships[:KEPT_EDGES])


def join(task: TaskRecord, fields: Mapping[str, bytes]) -> TaskRecord:
    """The whole record, from its snapshot and the edge fields.

    Raises:
        InvalidInput: a field has no edge that this version can read.
    """
    if len(task.relationships) < KEPT_EDGES or not (numbers := _list_numbers(fields)):
        return task
    rest = (from_bytes(Edge, fields[_name(number)]) for number in numbers)
    return change(task, relationships=(*task.relationships, *rest))


def list_changes(
    before: TaskRecord | None, fields: Mapping[str, bytes], after: TaskRecord
) -> dict[str, bytes | None]:
    """The changes of the fields when a record with ``fields`` is written; None removes one.

    A record stored before edge fields existed gets them with its next write.
    """
    rest = after.relationships[KEPT_EDGES:]
    if not rest:
        return {}
    listed = _list_numbers(fields)
    standing = before.relationships[KEPT_EDGES:] if before else ()
    if len(standing) == len(listed) and before and before.relationships is after.relationships:
        return {}
    known = _match(standing, listed)
    kept: set[int] = set()
    changes: dict[str, bytes | None] = {}
    last, fresh = -1, (listed[-1] + 1 if listed else 0)
    for edge in rest:
        number = known.get(id(edge), -1)
        if number > last:
            kept.add(number)
        else:
            number, fresh = fresh, fresh + 1
            changes[_name(number)] = to_bytes(edge)
        last = number
    return changes | {_name(number): None for number in listed if number not in kept}


def _match(standing: Sequence[Edge], listed: Sequence[int]) -> dict[int, int]:
    """The number of each edge in the fields, by object identity: a fold keeps the objects that it does not change."""
    if len(standing) != len(listed):
        return {}
    return {id(edge): number for edge, number in zip(standing, listed, strict=True)}


def _list_numbers(fields: Iterable[str]) -> list[int]:
    return sorted(int(name[len(_FIELD) :]) for name in fields if name.startswith(_FIELD))


def _name(number: int) -> str:
    return f"{_FIELD}{number}"
