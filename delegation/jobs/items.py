"""How the items of a job ended that were sent, and the facts that record it."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

from passerelle.core.events import Fact
from passerelle.core.facts import ErrorCategory, ErrorDetail, Scope
from passerelle.core.frozen import frozen
from passerelle.core.job import machine
from passerelle.core.job.machine import LIVE, JobState, JobStatus, RunningItem
from passerelle.core.payloads.job import (
    ItemRefusal,
    JobItemCompleted,
    JobItemFailed,
    JobItemStarted,
    JobProgress,
    JobStarted,
)
from passerelle.core.task.record import TaskRecord
from passerelle.core.task.status import ENDED, Status

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from passerelle.core.machine import Record
    from passerelle.delegation.runs.run import Run

ItemOutcome: TypeAlias = "str | ErrorDetail | None"
"""For an item that was sent: its task id, why it has none, or None where it is sent again."""


@frozen
class ItemEnd:
    """How the task of an item ended; ``status`` is None if the task is not stored any more."""

    status: Status | None
    error: ErrorDetail | None = None


def find_end(run: Run | None) -> ItemEnd | None:
    """How a task ended whose run was driven here, as stored by its driver.

    None where that is unknown here: the run continues elsewhere, or another attempt at the task is pending.
    """
    if run is None or run.moved:
        return None
    if run.rendered is not None:
        # Only completions are rendered.
        return ItemEnd(Status.COMPLETED)
    return read_end(run.record)


def read_end(record: Record | None) -> ItemEnd | None:
    """How a task ended by its stored record; None where it has not ended."""
    if not isinstance(record, TaskRecord):
        return ItemEnd(None)
    return ItemEnd(record.status, record.last_error) if record.status in ENDED else None


def list_item_facts(
    job_id: str,
    state: JobState,
    ended: Sequence[tuple[RunningItem, ItemEnd]],
    sent: Mapping[tuple[int, int], ItemOutcome],
) -> list[Fact]:
    """The facts that are still new: another instance may have recorded some, or a caller may have cancelled the job."""
    facts = [
        Fact(Scope(job_id, task_id=one.task_id), _judge(job_id, state, one, end))
        for one, end in ended
        if one in state.running and state.status in LIVE
    ]
    refused = list[ItemRefusal]()
    for (item, attempt), outcome in sent.items():
        if outcome is None or not machine.begins_next(state, item, attempt):
            continue
        if isinstance(outcome, ErrorDetail):
            refused.append(ItemRefusal(item, attempt, outcome))
            continue
        started = JobItemStarted(job_id, item, attempt, state.agent_of(item))
        facts.append(Fact(Scope(job_id, task_id=outcome), started))
    if refused:
        # Only the fold knows the counts after these facts; the next fact records them.
        progress = JobProgress(job_id, state.counts, tuple(refused))
        facts.append(Fact(Scope(job_id), progress))
    if facts and state.status is JobStatus.CREATED:
        facts.insert(0, Fact(Scope(job_id), JobStarted(job_id)))
    return facts


def _judge(
    job_id: str, state: JobState, one: RunningItem, end: ItemEnd
) -> JobItemCompleted | JobItemFailed:
    if end.status is Status.COMPLETED:
        return JobItemCompleted(job_id, one.item, one.attempt)
    status = "lost" if end.status is None else str(end.status)
    error = end.error or ErrorDetail(status, ErrorCategory.PEER, f"the task is {status}")
    retries = end.status is not Status.CANCELLED and machine.has_attempt_left(state, one.attempt)
    return JobItemFailed(job_id, one.item, one.attempt, error, retries)
