"""Read models as functions: every reason cites its fact, and silence is never shown as success."""

from __future__ import annotations

from typing import Any, cast

import pytest

from passerelle.core.events import Event, Fact
from passerelle.core.facts import Scope
from passerelle.core.read_models.explanation import explain_task
from passerelle.core.read_models.mark import MarkState
from passerelle.core.read_models.reasons import REASONS
from passerelle.core.read_models.task import QUIET_MS, show_task
from passerelle.core.record import change
from passerelle.core.status import Status
from passerelle.core.task_record import TaskRecord
from passerelle.core.times import parse_ms
from tests.support.payloads import FULL_SCOPE, sample

TASK = change(sample(TaskRecord), stale_from=None, status=Status.RUNNING, current_run_id="word")


@pytest.mark.requirement("VAL-9")
def test_every_reason_cites_the_fact_that_it_is_made_of() -> None:
    scope: Scope = FULL_SCOPE
    events = [
        Event(
            f"ev_{n}", "2026-11-21T00:00:00.000Z", "rt", Fact(scope, cast("Any", sample(kind))), n
        )
        for n, kind in enumerate(REASONS, 1)
    ]
    at = change(TASK.attempts[0], last_seen_at="2026-11-21T00:00:00.000Z")
    found = explain_task(change(TASK, attempts=(at,)), events, parse_ms(at.last_seen_at))
    told = [*found.agent, *found.waiting, *found.policy, *found.limits, *found.retries, *found.end]
    assert sorted(reason.fact.sequence for reason in told) == [event.sequence for event in events]
    assert all(reason.text for reason in told)
    bare = explain_task(change(TASK, attempts=(at,)), [], parse_ms(at.last_seen_at))
    assert bare.marks["agent"].state is MarkState.UNKNOWN
    assert bare.marks["policy"].state is MarkState.UNKNOWN


@pytest.mark.requirement("ST-19", "CF-16", "SNAP-21")
def test_silent_run_is_shown_as_stale_with_its_lag_and_the_last_known_status() -> None:
    at = change(TASK.attempts[0], last_seen_at="2026-11-21T00:00:00.000Z")
    task = change(TASK, attempts=(at,))
    seen_ms = parse_ms(at.last_seen_at)
    assert show_task(task, seen_ms + QUIET_MS).status is Status.RUNNING
    late = show_task(task, seen_ms + QUIET_MS + 1)
    assert (late.status, late.recorded) == (Status.STALE, Status.RUNNING)
    assert late.marks["status"].behind_ms == QUIET_MS + 1
    unread = show_task(change(task, stale_from=7), seen_ms)
    assert unread.marks["status"].state is MarkState.STALE
