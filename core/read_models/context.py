"""What of a conversation an agent was given (SNAP-6): each message as it came, since nothing is selected."""

from __future__ import annotations

from dataclasses import field
from typing import Final

from passerelle.core.facts import Ref
from passerelle.core.read_models.mark import Mark, not_applicable
from passerelle.core.read_models.task import name_task
from passerelle.core.record import record
from passerelle.core.task_record import TaskRecord

_NONE: Final[tuple[str, ...]] = ("summaries", "warnings", "missing")


@record
class ContextBoundary:
    """The inputs of a task, by the places where they stand in the stream."""

    task_id: str
    sequence: int
    selected: tuple[Ref, ...]
    warnings: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()
    marks: dict[str, Mark] = field(default_factory=dict[str, Mark])


def show_context(task: TaskRecord) -> ContextBoundary:
    """The boundary of a record."""
    mark = not_applicable("messages go to the agent as they came: nothing is left out or summed up")
    selected = tuple(Ref(sequence=sequence) for sequence in task.inputs)
    return ContextBoundary(name_task(task), task.last, selected, marks=dict.fromkeys(_NONE, mark))
