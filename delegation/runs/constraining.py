"""What follows from the constraints of a task: terms of its attempts, and its end where it goes beyond them (TR-11).

The gateway stops such a task itself: the wish is stored with what broke the constraint, and the agent is told by the
same row as where somebody else wishes it (CMD-9).
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

from passerelle.core import task as tasks
from passerelle.core.batch import DueChange
from passerelle.core.constraints import (
    find_excess,
    find_overspent,
    find_stranger,
    read_constraints,
)
from passerelle.core.errors import InvalidInput
from passerelle.core.payloads.task import TaskCancelRequested
from passerelle.core.status import Status
from passerelle.core.task_commands import RequestCancel

if TYPE_CHECKING:
    from passerelle.core.constraints import Constraints
    from passerelle.core.facts import RetryPolicy
    from passerelle.core.task_record import TaskRecord
    from passerelle.delegation.runs.step import Step

GATEWAY: Final = "gateway"
"""Who stops a task that nobody has stopped."""


def find_constraints(task: TaskRecord) -> Constraints | None:
    """Those of a task; None where it has none that hold anything."""
    if not task.constraints:
        return None
    try:
        return read_constraints(task.constraints)
    except InvalidInput:
        return None  # kept by a version that did not read them


def bound_policy(task: TaskRecord, policy: RetryPolicy) -> RetryPolicy:
    """The terms of an attempt, within the time that the task gives it."""
    constraints = find_constraints(task)
    if constraints is None or constraints.max_seconds is None:
        return policy
    most_ms = constraints.max_seconds * 1000
    return replace(policy, total_timeout_ms=min(policy.total_timeout_ms, most_ms))


def find_obstacle(
    task: TaskRecord, agent: str, endpoint: str | None, estimate_micros: int
) -> str | None:
    """Why the next attempt may not begin at an agent, where a constraint says so."""
    constraints = find_constraints(task)
    if constraints is None:
        return None
    cost = estimate_micros * (len(task.attempts) + 1)
    return find_stranger(constraints, agent, endpoint) or find_overspent(constraints, cost)


def enforce(step: Step) -> None:
    """Stops a task that has gone beyond its constraints; what it has brought stays recorded."""
    task = step.record
    constraints = find_constraints(task)
    if constraints is None or task.status is Status.CANCELLING:
        return
    reason = find_excess(constraints, task)
    if reason is None and constraints.asks_nobody and task.status is Status.WAITING_PERMISSION:
        reason = "constraint permission: the agent asks for leave"
    if reason is None or task.status not in tasks.TABLE[RequestCancel]:
        return
    wish = TaskCancelRequested(GATEWAY, "runtime", "active_run", reason)
    step.add(step.tell(RequestCancel(wish)))
    step.close_actions("task_cancelled")
    step.due.append(DueChange(f"cancel:{task.task_id}", step.decision.now_ms))
