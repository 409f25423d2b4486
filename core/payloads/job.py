"""Jobs: one objective over many inputs or many agents, one task per item (EXT-9, PRS-8, OBJ-4).

An item's facts carry the id of its task in their scope; ``item`` counts from 1 in the order of the job.
"""

from __future__ import annotations

from typing import ClassVar, Literal, TypeAlias

from passerelle.core.event_type import EventType
from passerelle.core.facts import ErrorDetail
from passerelle.core.wire.record import record


@record
class ItemCounts:
    """The items of a job by state; their sum is the number of items."""

    waiting: int = 0
    running: int = 0
    completed: int = 0
    failed: int = 0
    cancelled: int = 0


@record
class ItemRefusal:
    """An item that could not be sent and so has no task."""

    item: int
    attempt: int
    error: ErrorDetail


@record
class JobCreated:
    """A job exists; its inputs are in ``refs.input`` (EXT-9).

    ``agents`` are those of its items, or one for all. An item gets ``attempts`` attempts automatically, and the job
    fails if more than ``most_failed`` items fail in the end.
    """

    type: ClassVar = EventType.JOB_CREATED
    job_id: str
    objective: str
    over: Literal["inputs", "peers"]
    items: int
    requested_by: str
    title: str | None = None
    concurrency: int | None = None
    schedule: str | None = None
    agents: tuple[str, ...] | None = None
    attempts: int | None = None
    most_failed: int | None = None
    progress: Literal[True] | None = None
    parent_task_id: str | None = None
    """The task that delegates it (TEV-18)."""


@record
class JobStarted:
    """The first item is about to start, or the ``retried`` items again, on request (EXT-9)."""

    type: ClassVar = EventType.JOB_STARTED
    job_id: str
    retried: tuple[int, ...] = ()
    by: str | None = None


@record
class JobProgress:
    """The counts changed (EXT-9); ``refused`` are items that failed without a task."""

    type: ClassVar = EventType.JOB_PROGRESS
    job_id: str
    counts: ItemCounts
    refused: tuple[ItemRefusal, ...] = ()


@record
class JobItemStarted:
    """An item runs, for the ``attempt``-th time (EXT-9)."""

    type: ClassVar = EventType.JOB_ITEM_STARTED
    job_id: str
    item: int
    attempt: int
    peer: str | None = None


@record
class JobItemCompleted:
    """An item succeeded (EXT-9)."""

    type: ClassVar = EventType.JOB_ITEM_COMPLETED
    job_id: str
    item: int
    attempt: int
    summary: str | None = None


@record
class JobItemFailed:
    """An item did not succeed; with ``retries`` it is tried again (EXT-9)."""

    type: ClassVar = EventType.JOB_ITEM_FAILED
    job_id: str
    item: int
    attempt: int
    error: ErrorDetail
    retries: bool = False


@record
class JobCompleted:
    """All items ended, and no more failed than the job allows (EXT-9)."""

    type: ClassVar = EventType.JOB_COMPLETED
    job_id: str
    counts: ItemCounts


@record
class JobFailed:
    """Too many items failed, or the job itself could not go on (EXT-9)."""

    type: ClassVar = EventType.JOB_FAILED
    job_id: str
    counts: ItemCounts
    error: ErrorDetail


@record
class JobCancelled:
    """Stopped; items that had ended stay as they are (EXT-9, CMD-24)."""

    type: ClassVar = EventType.JOB_CANCELLED
    job_id: str
    counts: ItemCounts
    actor: str
    source: Literal["user", "policy", "runtime"]
    reason: str | None = None


JobPayload: TypeAlias = (
    JobCreated
    | JobStarted
    | JobProgress
    | JobItemStarted
    | JobItemCompleted
    | JobItemFailed
    | JobCompleted
    | JobFailed
    | JobCancelled
)
