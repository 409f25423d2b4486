"""The limits of a run: its time as due rows (I9), and the constraints of its task (TR-11).

``timeout`` limits the total time of a run, ``idle`` the time without an update of the agent. A row is set when the run
starts. Frames, pauses and messages do not move it: when it comes due, the record shows whether the limit is over, and
otherwise the row moves to the earliest possible end. The clock stops while a task is paused or blocked. The idle clock
runs only while the agent works: not while the task waits for a person or another task.

Constraints bound the terms of each attempt, and end a task that exceeds them. The gateway cancels such a task itself:
the cancel is stored with the broken constraint, and sent to the agent by the same row as any cancel (CMD-9).
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final, Literal, TypeAlias

from passerelle.core.batch import DueChange
from passerelle.core.errors import InvalidInput
from passerelle.core.payloads.task import TaskCancelRequested
from passerelle.core.task import machine as tasks
from passerelle.core.task.commands import RequestCancel
from passerelle.core.task.constraints import (
    find_disallowed,
    find_excess,
    find_overspent,
    read_constraints,
)
from passerelle.core.task.status import HELD, WORKING, Status
from passerelle.core.wire.times import parse_ms

if TYPE_CHECKING:
    from passerelle.core.facts import RetryPolicy
    from passerelle.core.task.constraints import Constraints
    from passerelle.core.task.record import Attempt, TaskRecord
    from passerelle.delegation.runs.draft import DecisionDraft

TimeLimit: TypeAlias = Literal["total", "idle"]

ROWS: Final[dict[TimeLimit, str]] = {"total": "timeout", "idle": "idle"}
"""The kinds of the due rows."""
_SHORTEST_MS: Final = 1_000
"""Shortest pause between two checks of a task whose clock is stopped."""
GATEWAY: Final = "gateway"
"""The actor of a cancel by the gateway."""


def list_limits(task_id: str, policy: RetryPolicy, now_ms: int) -> tuple[DueChange, ...]:
    """The rows of a run that starts now."""
    limits: tuple[TimeLimit, ...] = ("total", "idle")
    return tuple(
        DueChange(f"{ROWS[limit]}:{task_id}", now_ms + limit_ms)
        for limit in limits
        if (limit_ms := read_limit(policy, limit)) is not None
    )


def drop_limits(task_id: str, run: Attempt | None) -> tuple[DueChange, ...]:
    """Drops the rows of a run."""
    if run is None:
        return ()
    return tuple(DueChange(row.member, None) for row in list_limits(task_id, run.retry_policy, 0))


def read_limit(policy: RetryPolicy, limit: TimeLimit) -> int | None:
    """The limit in ms; None for no limit."""
    return policy.total_timeout_ms if limit == "total" else policy.idle_timeout_ms


def find_end(record: TaskRecord, limit: TimeLimit, now_ms: int) -> int | None:
    """When to check whether a limit is over, in ms: at most ``now_ms`` if it is; None without a limit."""
    run = record.attempts[-1] if record.attempts else None
    limit_ms = read_limit(run.retry_policy, limit) if run else None
    if run is None or limit_ms is None:
        return None
    if limit == "idle":
        return _find_idle_end(record, run, limit_ms, now_ms)
    end_ms = parse_ms(run.started_at) + run.held_ms + limit_ms
    if record.status not in HELD:
        return end_ms
    left_ms = end_ms - parse_ms(record.status_at)
    return now_ms + max(left_ms, _SHORTEST_MS)


def _find_idle_end(record: TaskRecord, run: Attempt, limit_ms: int, now_ms: int) -> int:
    if record.status not in WORKING:
        return now_ms + max(limit_ms, _SHORTEST_MS)
    return max(parse_ms(run.news_at), parse_ms(record.status_at)) + limit_ms


def explain_limit(record: TaskRecord, limit: TimeLimit) -> str:
    """The reason for callers when a limit is over."""
    run = record.attempts[-1]
    limit_s = (read_limit(run.retry_policy, limit) or 0) // 1000
    if limit == "total" and record.constraints.get("maxSeconds") == limit_s:
        return f"constraint maxSeconds: the task took longer than {limit_s} s"
    if limit == "idle":
        return f"the agent sent no update for {limit_s} s"
    return f"the task took longer than {limit_s} s"


def find_constraints(task: TaskRecord) -> Constraints | None:
    """The constraints of a task; None where it has none that apply."""
    if not task.constraints:
        return None
    try:
        return read_constraints(task.constraints)
    except InvalidInput:
        return None  # written by a version that did not check them


def bound_policy(task: TaskRecord, policy: RetryPolicy) -> RetryPolicy:
    """The terms of an attempt, within the time limit of the task."""
    constraints = find_constraints(task)
    if constraints is None or constraints.max_seconds is None:
        return policy
    most_ms = constraints.max_seconds * 1000
    return replace(policy, total_timeout_ms=min(policy.total_timeout_ms, most_ms))


def find_obstacle(
    task: TaskRecord, agent: str, endpoint: str | None, estimate_micros: int
) -> str | None:
    """The constraint that keeps the next attempt from an agent, or None."""
    constraints = find_constraints(task)
    if constraints is None:
        return None
    cost = estimate_micros * (len(task.attempts) + 1)
    return find_disallowed(constraints, agent, endpoint) or find_overspent(constraints, cost)


def enforce(draft: DecisionDraft) -> None:
    """Cancels a task that exceeds its constraints; its output so far stays recorded."""
    task = draft.record
    constraints = find_constraints(task)
    if constraints is None or task.status is Status.CANCELLING:
        return
    reason = find_excess(constraints, task)
    if reason is None and constraints.never_asks and task.status is Status.WAITING_PERMISSION:
        reason = "constraint permission: the agent asks for approval"
    if reason is None or task.status not in tasks.TABLE[RequestCancel]:
        return
    cancel = TaskCancelRequested(GATEWAY, "runtime", "active_run", reason)
    draft.add(draft.decide(RequestCancel(cancel)))
    draft.close_actions("task_cancelled")
    draft.due.append(DueChange(f"cancel:{task.task_id}", draft.decision.now_ms))
