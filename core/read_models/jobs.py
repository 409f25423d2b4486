"""The read model of a job: its items by state, what they wait for, and its parameters (EXT-9)."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from passerelle.core.job.requests import JobModel, JobWait
from passerelle.core.payloads.task import BlockerKind
from passerelle.core.read_models.blockers import find_blockers
from passerelle.core.task.record import TaskRecord, waits_for_quota

if TYPE_CHECKING:
    from collections.abc import Iterable

    from passerelle.core.session.machine import SessionRecord


def show_job(record: SessionRecord) -> JobModel | None:
    """The job of a session; None if it has none."""
    job = record.job
    if job is None:
        return None
    return JobModel(
        job_id=record.session_id,
        status=job.status,
        items=len(job.states),
        counts=job.counts,
        concurrency=job.concurrency,
        attempts=job.attempts,
        most_failed=job.most_failed,
        agents=job.agents if len(job.agents) > 1 else job.agents[:1],
        created_at=record.created_at,
        updated_at=record.updated_at,
        title=record.title,
        labels=record.labels,
        parent_task_id=job.parent,
    )


def list_waits(tasks: Iterable[TaskRecord]) -> tuple[JobWait, ...]:
    """What the tasks of running items wait for, without quotas: an account knows which one is used up."""
    blockers = [one for task in tasks if not waits_for_quota(task) for one in find_blockers(task)]
    counts = Counter[tuple[BlockerKind, str | None, str | None]](
        (one.kind, one.reason, one.until) for one in blockers
    )
    return tuple(
        JobWait(kind, items, reason, until) for (kind, reason, until), items in counts.items()
    )
