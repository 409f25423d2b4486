"""Whether the output of a task has reached its consumers (SNAP-19, PO-6).

The record has the delivery to callers and to consumers named by a command. Webhooks and devices have cursors of their
own, which are compared with the stream: completion never waits for them (I5).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import field
from typing import Literal

from passerelle.core.frozen import frozen
from passerelle.core.read_models.mark import FreshnessMark, not_applicable, unavailable, unknown
from passerelle.core.read_models.task import name_task
from passerelle.core.task.record import TaskRecord
from passerelle.core.task.status import ENDED, Delivery, Status
from passerelle.core.wire.record import record


@record
class DeliveryState:
    """One state per consumer: ``facade``, ``parent``, ``webhook:<id>``, ``device:<id>``, or the name from a command.

    ``outputs`` are the artifacts concerned.
    """

    task_id: str
    sequence: int
    consumers: dict[str, Delivery] = field(default_factory=dict[str, Delivery])
    outputs: tuple[str, ...] = ()
    marks: dict[str, FreshnessMark] = field(default_factory=dict[str, FreshnessMark])


@frozen
class Receiver:
    """A follower of a task's stream: ``sequence`` is that of its last received event."""

    name: str
    sequence: int
    state: Literal["live", "backoff", "dead", "done"] = "live"


def show_delivery(
    task: TaskRecord,
    receivers: Iterable[Receiver] | None = None,
    parent: TaskRecord | None = None,
) -> DeliveryState:
    """The delivery of a task. ``receivers`` None: its followers were not read."""
    consumers, marks = dict(task.delivery), dict[str, FreshnessMark]()
    if not consumers:
        ended = task.status in ENDED
        marks["consumers"] = (
            unknown("no delivery is recorded")
            if ended
            else not_applicable("nothing to deliver yet")
        )
    if task.parent_task_id is None:
        marks["parent"] = not_applicable("the task has no parent")
        consumers["parent"] = Delivery.NOT_APPLICABLE
    elif receivers is not None and "parent" not in consumers:
        consumers["parent"] = _judge_parent(task, parent)
    if receivers is None:
        marks["receivers"] = unavailable(
            "webhooks and devices are in the task's own delivery model"
        )
    consumers |= {one.name: _judge(task, one) for one in receivers or ()}
    produced = (one.artifact_id for one in task.artifacts if one.direction == "produced")
    return DeliveryState(name_task(task), task.last, consumers, tuple(produced), marks)


def _judge(task: TaskRecord, receiver: Receiver) -> Delivery:
    """Whether a receiver has the last event that callers see."""
    if task.status in ENDED and (receiver.state == "done" or receiver.sequence >= task.shown_to):
        return Delivery.DELIVERED
    if receiver.state == "dead":
        return Delivery.FAILED
    return Delivery.QUEUED if receiver.state == "backoff" else Delivery.PENDING


def _judge_parent(task: TaskRecord, parent: TaskRecord | None) -> Delivery:
    """A parent reads its child's output in the child's record, which it links to; a missing parent does not."""
    if parent is None or parent.status is Status.ARCHIVED:
        return Delivery.PARENT_MISSING
    return Delivery.DELIVERED if task.status in ENDED else Delivery.PENDING
