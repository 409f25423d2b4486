"""Ancestors and descendants of a task, read from both ends of the parent and child edges (GR-1, GR-11)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from passerelle.core.batch import EntityKind, EntityRef
from passerelle.core.chunks import in_chunks
from passerelle.core.errors import UnsupportedOperation
from passerelle.core.ids import read_shard
from passerelle.core.task.record import TaskRecord
from passerelle.core.task.status import Status
from passerelle.runtime.records.ownership import Owned, may_see

if TYPE_CHECKING:
    from collections.abc import Iterable

    from passerelle.core.principal import Principal
    from passerelle.runtime.records.writes import Writes

_AT_ONCE: Final = 64
"""Records in one read."""
_STOPPED: Final = frozenset({Status.CANCELLING, Status.CANCELLED})


def refuse_below_stopped(parent: TaskRecord) -> None:
    """Refuses new work below a task that is being cancelled or was cancelled (GR-11).

    Raises:
        UnsupportedOperation: a cancel request for the task is stored.
    """
    if parent.status in _STOPPED:
        word = "is being cancelled" if parent.status is Status.CANCELLING else "was cancelled"
        raise UnsupportedOperation(
            f"a task above it {word}: {parent.task_id}",
            status=parent.status,
            cancelled=parent.task_id,
        )


async def check_above(writes: Writes, task: TaskRecord) -> int:
    """Reads the ancestors of a task up to the root and refuses if one is being cancelled; returns how many there are.

    A task without a parent costs no read, and a removed edge is not followed.

    Raises:
        UnsupportedOperation: a cancel request for one of them is stored.
    """
    seen, at = {task.task_id}, task
    while (above := _find_parent(at)) is not None and above not in seen:
        seen.add(above)
        record = await writes.read(TaskRecord, above)
        if record is None:
            break
        refuse_below_stopped(record)
        at = record
    return len(seen) - 1


def _find_parent(task: TaskRecord) -> str | None:
    above = task.parent_task_id
    removed = any(
        edge.kind == "parent" and edge.target == above and edge.status == "removed"
        for edge in task.relationships
    )
    return None if removed else above


async def list_below(
    writes: Writes,
    owner: str,
    top: TaskRecord,
    principal: Principal | None = None,
    most: int | None = None,
) -> list[Owned]:
    """Every task of an owner below ``top``, open or ended, nearest first; each once, even with cycles.

    ``principal``: tasks it may not see are left out, with everything below them. ``most``: reading stops once more than
    this many are found.
    """
    seen, found = {top.task_id}, list[Owned]()
    level = _list_children([top], seen)
    while level and (most is None or len(found) <= most):
        fresh: list[TaskRecord] = []
        for part in in_chunks(level, _AT_ONCE):
            if most is not None and len(found) > most:
                break
            for ref, held in (await writes.load(part)).items():
                record = held.record
                if not isinstance(record, TaskRecord) or record.owner != owner:
                    continue
                if principal is None or may_see(principal, record):
                    found.append(Owned(ref, held, record))
                    fresh.append(record)
        level = _list_children(fresh, seen)
    return found


def _list_children(tasks: Iterable[TaskRecord], seen: set[str]) -> list[EntityRef]:
    """The children of some tasks that are not in ``seen``; adds them to it."""
    children: list[EntityRef] = []
    for task in tasks:
        for edge in task.relationships:
            is_new = edge.kind == "child" and edge.status != "removed" and edge.target not in seen
            if is_new and edge.items is None and read_shard(edge.target) is not None:
                seen.add(edge.target)
                children.append(EntityRef(EntityKind.TASK, edge.target))
    return children
