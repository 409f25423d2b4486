"""What a task brought is handed over to the task that it was made for, before it completes (I5, PO-6).

The parent stands in a record of its own, so this is an append of its own: the edge to the child is satisfied there, and
then the child's record says that it was delivered. Both may be done twice, and are then one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from passerelle.core import task as tasks
from passerelle.core.batch import EntityKind, EntityRef
from passerelle.core.payloads.task import TaskDependencyUpdated
from passerelle.core.status import HELD, Delivery, Status
from passerelle.core.task_commands import LinkTask, RecordDelivery
from passerelle.core.task_record import TaskRecord
from passerelle.runtime.records.writes import Terms

if TYPE_CHECKING:
    from passerelle.core.decision import Decision
    from passerelle.delegation.runs.driver import Driver
    from passerelle.runtime.records.writes import Writes


async def hand_over(driver: Driver) -> None:
    """Tells the parent, if that is all that is missing.

    Raises:
        StoreUnavailable: the parent could not be told, and the task waits.
    """
    record = driver.run.record
    if not _is_all_that_is_missing(record):
        return
    delivery = await _tell(driver.run.writes, record)
    command = RecordDelivery(tasks.PARENT, delivery)
    await driver.patiently(lambda step: step.add(step.tell(command)))


def _is_all_that_is_missing(record: TaskRecord) -> bool:
    if record.withheld is None or record.open_actions or record.status in HELD:
        return False
    missing = tasks.find_missing(record)
    return record.status is not Status.CANCELLING and missing == tasks.NO_PARENT


async def _tell(writes: Writes, child: TaskRecord) -> Delivery:
    """Satisfies the edge of the parent; one that is gone or put away has nobody to read it."""
    ref = EntityRef(EntityKind.TASK, child.parent_task_id or "")
    parent = (await writes.load([ref]))[ref].record
    if not isinstance(parent, TaskRecord) or parent.status is Status.ARCHIVED:
        return Delivery.PARENT_MISSING

    def body(decision: Decision) -> Terms:
        now = decision.state(ref)
        if isinstance(now, TaskRecord) and now.status is not Status.ARCHIVED:
            _satisfy(decision, now, child.task_id)
        return Terms()

    await writes.decide(parent.session_id, [ref], body)
    return Delivery.DELIVERED


def _satisfy(decision: Decision, parent: TaskRecord, child: str) -> None:
    for edge in parent.relationships:
        if edge.kind == "child" and edge.target == child and edge.status == "open":
            satisfied = TaskDependencyUpdated(
                edge.edge_id, "child", child, "satisfied", edge.status, "the task is done"
            )
            decision.add(tasks.decide(parent, LinkTask(satisfied)))
