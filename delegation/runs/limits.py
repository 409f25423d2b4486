"""The limits of a run as due rows (I9): the time that it may take at all, and the time without news of the agent.

A row is set when the run starts. Nothing moves it with each frame, pause or message: when it comes due, the record says
whether the limit is over by now, and else the row goes on to when it may be. The clock stands still while a task is
paused or blocked. That of news runs only while the agent works: not while somebody else is waited for.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Literal, TypeAlias

from passerelle.core.batch import DueChange
from passerelle.core.status import HELD, WORKING
from passerelle.core.times import parse_ms

if TYPE_CHECKING:
    from passerelle.core.facts import RetryPolicy
    from passerelle.core.task_record import Attempt, TaskRecord

Limit: TypeAlias = Literal["total", "idle"]

ROWS: Final[dict[Limit, str]] = {"total": "timeout", "idle": "idle"}
"""The kinds of the due rows."""
_SHORTEST_MS: Final = 1_000
"""Between two looks at a task whose clock stands still."""


def list_limits(task_id: str, policy: RetryPolicy, now_ms: int) -> tuple[DueChange, ...]:
    """The rows of a run that starts now."""
    limits: tuple[Limit, ...] = ("total", "idle")
    return tuple(
        DueChange(f"{ROWS[limit]}:{task_id}", now_ms + limit_ms)
        for limit in limits
        if (limit_ms := read_limit(policy, limit)) is not None
    )


def drop_limits(task_id: str, run: Attempt | None) -> tuple[DueChange, ...]:
    """Takes the rows of a run out."""
    if run is None:
        return ()
    return tuple(DueChange(row.member, None) for row in list_limits(task_id, run.retry_policy, 0))


def read_limit(policy: RetryPolicy, limit: Limit) -> int | None:
    """How long it is, in ms; None where there is none."""
    return policy.total_timeout_ms if limit == "total" else policy.idle_timeout_ms


def find_end(record: TaskRecord, limit: Limit, now_ms: int) -> int | None:
    """When to look whether a limit is over, in ms: not later than ``now_ms`` where it is; None without a limit."""
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


def explain_limit(record: TaskRecord, limit: Limit) -> str:
    """What callers are told when it is over."""
    run = record.attempts[-1]
    limit_s = (read_limit(run.retry_policy, limit) or 0) // 1000
    if limit == "total" and record.constraints.get("maxSeconds") == limit_s:
        return f"constraint maxSeconds: the task took longer than {limit_s} s"
    if limit == "idle":
        return f"there was no news of the agent for {limit_s} s"
    return f"the task took longer than {limit_s} s"
