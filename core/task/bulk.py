"""Applies one verb to every task that a filter matches, if their number is the expected one."""

from __future__ import annotations

from typing import Annotated, Final, Literal, TypeAlias

from pydantic import Field

from passerelle.core.task.requests import Id, ReasonText, UnchangedTask
from passerelle.core.task.status import Status, Visibility
from passerelle.core.wire.record import record

MOST_TASKS: Final = 1_000
BulkVerb: TypeAlias = Literal["cancel", "pause", "resume", "retry"]


@record
class TaskFilter:
    """Selects tasks of the caller, with the filters of ``list_tasks``."""

    status: Annotated[tuple[Status, ...], Field(max_length=20)] = ()
    visibility: Annotated[tuple[Visibility, ...], Field(max_length=4)] = ()
    agent: Id | None = None
    session_id: Id | None = None
    context_id: Id | None = None
    since: Annotated[str, Field(max_length=40)] | None = None
    until: Annotated[str, Field(max_length=40)] | None = None
    text: Annotated[str, Field(min_length=1, max_length=200)] | None = None
    task_ids: (
        Annotated[
            tuple[Annotated[str, Field(max_length=200)], ...],
            Field(min_length=1, max_length=MOST_TASKS),
        ]
        | None
    ) = None
    """Exactly these tasks, without any other filter. Ids that are not tasks of the caller are reported (MK-12)."""


@record
class ChangeTasks:
    """Apply ``verb`` to each task that ``filter`` matches; refused unless ``expect`` tasks match."""

    verb: BulkVerb
    filter: TaskFilter
    expect: Annotated[int, Field(ge=0, le=MOST_TASKS)]
    reason: ReasonText | None = None


@record
class TasksChanged:
    """How many tasks changed, and those that did not."""

    verb: BulkVerb
    matched: int
    changed: int
    unchanged: tuple[UnchangedTask, ...] = ()
