"""The read model of a job: its items by state, and its parameters (EXT-9)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from passerelle.core.job.requests import JobModel

if TYPE_CHECKING:
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
