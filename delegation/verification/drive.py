"""Checks that something drives every task: a living driver, a due row, or an open question (I9, AP-3)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from passerelle.core.approval.record import ActionRecord
from passerelle.core.task.record import TaskRecord
from passerelle.core.task.status import ENDED, HELD, Status
from passerelle.delegation.runs.limits import ROWS
from passerelle.delegation.verification.report import Problem
from passerelle.runtime.records.task_fields import LEASE, read_driver

if TYPE_CHECKING:
    from passerelle.core.batch import EntityRef, Loaded
    from passerelle.delegation.verification.stream import SessionReplay
    from passerelle.store.store import Store


_LIMITS: Final = frozenset(ROWS.values())
"""Rows that only end a run without progress."""


async def find_undriven(store: Store, replay: SessionReplay) -> list[Problem]:
    """The tasks of a session that have not ended and have neither driver, due row nor open question."""
    found: list[Problem] = []
    for loaded in replay.stored:
        record = replay.states.get(loaded.ref)
        if not isinstance(record, TaskRecord) or record.status in ENDED or waits_for_owner(record):
            continue
        if has_open_question(replay, record.task_id) or await _is_moved_on(store, replay, loaded):
            continue
        (again,) = await store.log.load([loaded.ref])
        if again.stamp == loaded.stamp:
            detail = f"{record.status}, without a driver, a due row or an open question"
            found.append(Problem("undriven", replay.session, record.task_id, detail))
    return found


def waits_for_owner(record: TaskRecord) -> bool:
    """Whether only a command moves a task on: it is paused or blocked, or was never started."""
    is_unstarted = record.status in {Status.DRAFT, Status.ACCEPTED} and not record.attempts
    return record.status in HELD or is_unstarted


def has_open_question(replay: SessionReplay, task_id: str) -> bool:
    """Whether an approval request for the task is open."""
    return any(
        isinstance(record, ActionRecord) and record.is_open and record.scope.task_id == task_id
        for record in replay.states.values()
    )


async def _is_moved_on(store: Store, replay: SessionReplay, task: Loaded) -> bool:
    due = await store.inspection.read_due(task.ref.shard)
    subjects = {task.ref.id, *_list_actions(replay, task.ref)}
    rows = (member.split(":", 2) for member in due)
    if any(row[0] not in _LIMITS and row[1] in subjects for row in rows):
        return True
    driver = read_driver(task.fields)
    if driver is None:
        return False
    driven = await store.inspection.read_driver_set(task.ref.shard, driver.instance)
    # A set that has expired, or is gone, counts as long as its row exists: its runs will be taken over.
    return (
        driven is not None
        and driven.number == driver.number
        and task.ref.id in driven.tasks
        and f"{LEASE}:{driver.instance}" in due
        # After a loss the set may name runs that its instance has released, until that instance has compared them.
        and (
            not driven.is_living or driven.seen >= await store.inspection.read_epoch(task.ref.shard)
        )
    )


def _list_actions(replay: SessionReplay, task: EntityRef) -> list[str]:
    return [
        record.request.action_id
        for record in replay.states.values()
        if isinstance(record, ActionRecord) and record.scope.task_id == task.id
    ]
