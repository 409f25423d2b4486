"""Tasks that wait for somebody, and for whom (SNAP-18)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

from passerelle.core.read_models.task import name_task
from passerelle.core.record import record
from passerelle.core.status import ENDED, WAITING, Status
from passerelle.core.task_record import TaskRecord


@record
class Blocker:
    """What stands in the way: a question that is open, a task that is not done, or what the status says."""

    kind: Literal["action", "dependency", "status"]
    target: str
    reason: str | None = None


@record
class BlockedTask:
    """A task that makes no progress until its blockers are gone. ``actions`` are the questions to be answered."""

    task_id: str
    status: Status
    since: str
    blockers: tuple[Blocker, ...]
    actions: tuple[str, ...] = ()


def list_blocked(tasks: Iterable[TaskRecord]) -> tuple[BlockedTask, ...]:
    """The tasks that wait, in their order."""
    return tuple(
        BlockedTask(name_task(task), task.status, task.status_at, blockers, task.open_actions)
        for task in tasks
        if task.status not in ENDED and (blockers := _find_blockers(task))
    )


def _find_blockers(task: TaskRecord) -> tuple[Blocker, ...]:
    found = [Blocker("action", action, task.status_reason) for action in task.open_actions]
    found += [
        Blocker("dependency", edge.target, edge.reason)
        for edge in task.relationships
        if edge.kind == "blocked_by" and edge.status == "open"
    ]
    if not found and task.status in WAITING:
        found.append(Blocker("status", task.status, task.status_reason))
    return tuple(found)
