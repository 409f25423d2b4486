"""Whether a limit is over, from the record of a task alone."""

from __future__ import annotations

from dataclasses import replace

import pytest

from passerelle.core.facts import RetryPolicy
from passerelle.core.task.record import TaskRecord
from passerelle.core.task.status import Status
from passerelle.core.wire.record import change
from passerelle.core.wire.times import format_ms
from passerelle.delegation.runs.limits import (
    drop_limits,
    explain_limit,
    find_end,
    list_limits,
    read_limit,
)
from tests.unit.delegation.pump import make_running

BEGUN_MS = 1_800_000_000_000
POLICY = RetryPolicy(total_timeout_ms=60_000, idle_timeout_ms=5_000)


def task(status: Status = Status.RUNNING, at_ms: int = 0, **of_run: object) -> TaskRecord:
    """A task with one run that began at 0, in a status since ``at_ms``."""
    record = make_running().record
    run = replace(
        record.attempts[-1],
        retry_policy=POLICY,
        started_at=format_ms(BEGUN_MS),
        last_seen_at=format_ms(BEGUN_MS),
    )
    attempts = (change(run, **of_run),)
    return change(record, status=status, status_at=format_ms(BEGUN_MS + at_ms), attempts=attempts)


def test_each_limit_has_its_row_and_no_limit_has_none() -> None:
    rows = list_limits("task_1", POLICY, 100)
    assert [(row.member, row.at_ms) for row in rows] == [
        ("timeout:task_1", 60_100),
        ("idle:task_1", 5_100),
    ]
    assert len(list_limits("task_1", RetryPolicy(), 0)) == 1
    assert [row.at_ms for row in drop_limits("task_1", task().attempts[-1])] == [None, None]
    assert drop_limits("task_1", None) == ()
    assert read_limit(RetryPolicy(), "idle") is None


def test_total_limit_counts_from_the_start_and_not_while_the_task_was_held() -> None:
    assert find_end(task(), "total", BEGUN_MS) == BEGUN_MS + 60_000
    assert find_end(task(held_ms=7_000), "total", BEGUN_MS) == BEGUN_MS + 67_000


@pytest.mark.parametrize("status", [Status.PAUSED, Status.BLOCKED])
def test_total_limit_of_a_held_task_is_as_far_away_as_when_it_was_held(status: Status) -> None:
    held = task(status, at_ms=20_000)
    for now_ms in (BEGUN_MS + 20_000, BEGUN_MS + 90_000):
        assert find_end(held, "total", now_ms) == now_ms + 40_000
    assert find_end(task(status, at_ms=60_000), "total", BEGUN_MS) == BEGUN_MS + 1_000


def test_idle_limit_counts_from_the_last_news_and_not_from_a_sign_of_life() -> None:
    seen = format_ms(BEGUN_MS + 30_000)
    assert find_end(task(last_seen_at=seen), "idle", BEGUN_MS) == BEGUN_MS + 35_000
    alive = task(last_seen_at=seen, silent_since=format_ms(BEGUN_MS + 2_000))
    assert find_end(alive, "idle", BEGUN_MS) == BEGUN_MS + 7_000


def test_idle_limit_does_not_run_while_the_task_waits() -> None:
    waiting = task(Status.WAITING_INPUT)
    assert find_end(waiting, "idle", BEGUN_MS + 90_000) == BEGUN_MS + 95_000
    back = task(Status.RUNNING, at_ms=90_000)
    assert find_end(back, "idle", BEGUN_MS + 91_000) == BEGUN_MS + 95_000


def test_task_without_a_run_or_a_limit_has_no_end() -> None:
    assert find_end(change(task(), attempts=()), "total", 0) is None
    assert find_end(task(retry_policy=RetryPolicy()), "idle", 0) is None


def test_the_message_names_the_limit() -> None:
    assert explain_limit(task(), "total") == "the task took longer than 60 s"
    assert explain_limit(task(), "idle") == "the agent sent no update for 5 s"
