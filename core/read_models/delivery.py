"""Whether what a task brought has reached those who wait for it (SNAP-19, PO-6)."""

from __future__ import annotations

from dataclasses import field

from passerelle.core.read_models.mark import Mark, not_applicable, unknown
from passerelle.core.read_models.task import name_task
from passerelle.core.record import record
from passerelle.core.status import ENDED, Delivery
from passerelle.core.task_record import TaskRecord


@record
class DeliveryState:
    """One word for each consumer; ``outputs`` are the artifacts that it is about."""

    task_id: str
    sequence: int
    consumers: dict[str, Delivery] = field(default_factory=dict[str, Delivery])
    outputs: tuple[str, ...] = ()
    marks: dict[str, Mark] = field(default_factory=dict[str, Mark])


def show_delivery(task: TaskRecord) -> DeliveryState:
    """The delivery of a record."""
    marks: dict[str, Mark] = {}
    if not task.delivery:
        ended = task.status in ENDED
        marks["consumers"] = (
            unknown("no delivery is recorded")
            if ended
            else not_applicable("nothing to deliver yet")
        )
    if task.parent_task_id is None:
        marks["parent"] = not_applicable("the task has no parent")
    produced = (one.artifact_id for one in task.artifacts if one.direction == "produced")
    return DeliveryState(name_task(task), task.last, task.delivery, tuple(produced), marks)
