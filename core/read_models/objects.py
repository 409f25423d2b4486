"""Task, run, step, job and todo apart from each other, as far as a task has them (OBJ-6)."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import field

from passerelle.core.events import Event
from passerelle.core.json import JsonObject
from passerelle.core.read_models.mark import Mark, not_applicable
from passerelle.core.read_models.task import TaskLine, show_task
from passerelle.core.record import record
from passerelle.core.task_record import Attempt, TaskRecord


@record
class Step:
    """One frame of the agent, or one act of the gateway, inside a run; ``classes`` are those of its facts, in order."""

    step_id: str
    run_id: str | None
    first: int
    last: int
    at: str
    classes: tuple[str, ...]


@record
class TaskObjects:
    """The five objects."""

    task: TaskLine
    runs: tuple[Attempt, ...]
    steps: tuple[Step, ...]
    jobs: tuple[str, ...] = ()
    todos: tuple[JsonObject, ...] = ()
    marks: dict[str, Mark] = field(default_factory=dict[str, Mark])


def show_objects(task: TaskRecord, events: Iterable[Event], now_ms: int) -> TaskObjects:
    """The five objects of a record; ``events`` are those of its task that could be read."""
    steps: dict[str, list[Event]] = {}
    for event in events:
        scope = event.fact.scope
        if scope.step_id is not None and scope.task_id == task.task_id:
            steps.setdefault(scope.step_id, []).append(event)
    marks = {"jobs": not_applicable("the task is no part of a job")}
    if not task.progress.checklist:
        marks["todos"] = not_applicable("the agent keeps no checklist")
    return TaskObjects(
        task=show_task(task, now_ms),
        runs=task.attempts,
        steps=tuple(_show(step_id, facts) for step_id, facts in steps.items()),
        todos=task.progress.checklist,
        marks=marks,
    )


def _show(step_id: str, facts: list[Event]) -> Step:
    first, last = facts[0], facts[-1]
    return Step(
        step_id=step_id,
        run_id=first.fact.scope.run_id,
        first=first.sequence,
        last=last.sequence,
        at=first.timestamp,
        classes=tuple(event.type for event in facts),
    )
