"""Requests of a caller about its jobs."""

from __future__ import annotations

from dataclasses import field
from typing import Annotated, Final, Literal, TypeAlias

from pydantic import Field

from passerelle.core.facts import ErrorDetail
from passerelle.core.job.machine import MOST_AT_ONCE, MOST_ATTEMPTS, MOST_ITEMS, JobStatus
from passerelle.core.payloads.job import ItemCounts
from passerelle.core.payloads.task import BlockerKind
from passerelle.core.session.requests import Labels
from passerelle.core.task.requests import PAGE_LIMIT, Id, ReasonText, Title
from passerelle.core.wire.json import JsonObject
from passerelle.core.wire.record import record

MOST_INPUT_BYTES: Final = 1024 * 1024
"""Total bytes of the messages of a job."""
RESULT_PAGE: Final = 100
JobItemState: TypeAlias = Literal["waiting", "running", "completed", "failed", "cancelled"]
_Text: TypeAlias = Annotated[str, Field(min_length=1, max_length=65_536)]


@record
class SubmitJob:
    """One task for each of ``inputs`` at one agent, or for each of ``agents`` with one text (EXT-9).

    An item gets ``attempts`` attempts automatically. The job fails if more than ``most_failed`` items fail in the end.
    """

    title: Title
    agents: Annotated[tuple[Id, ...], Field(min_length=1, max_length=MOST_ITEMS)]
    inputs: Annotated[tuple[_Text, ...], Field(min_length=1, max_length=MOST_ITEMS)]
    concurrency: Annotated[int, Field(ge=1, le=MOST_AT_ONCE)] = 8
    attempts: Annotated[int, Field(ge=1, le=MOST_ATTEMPTS)] = 1
    most_failed: Annotated[int, Field(ge=0, le=MOST_ITEMS)] = 0
    titles: Annotated[tuple[Title, ...], Field(max_length=MOST_ITEMS)] = ()
    """The title of each item's task, in order; without them, the first words of its text."""
    distinct: bool = False
    """Whether equal agents, or inputs, become one item, and so one task; not if their titles differ (MK-4)."""
    progress: bool = False
    """Whether items report progress while they run; such an item costs about three times as much."""
    parent_task_id: Id | None = None
    """The task that delegates the job: its counters and graph include the job, and cancelling it cancels the job."""
    labels: Labels = field(default_factory=dict[str, str])


@record
class CancelJob:
    """Start no more items, and cancel the running ones; ended items stay as they are (CMD-24)."""

    job_id: Id
    reason: ReasonText | None = None


@record
class RetryJob:
    """Retry failed or cancelled items: these (counted from 1), or all."""

    job_id: Id
    items: Annotated[tuple[Annotated[int, Field(ge=1)], ...], Field(max_length=MOST_ITEMS)] = ()


JobRequest: TypeAlias = SubmitJob | CancelJob | RetryJob


@record
class GetJob:
    """A job and its progress (CMD-24)."""

    job_id: Id


@record
class ListJobs:
    """The jobs of the caller, the newest first (CMD-24)."""

    page_size: Annotated[int, Field(ge=1, le=PAGE_LIMIT)] = 50
    page_token: Annotated[str, Field(max_length=512)] | None = None


@record
class GetJobResults:
    """Items in order after the item ``after``, each with its state, attempts, task and result (PRS-8)."""

    job_id: Id
    after: Annotated[int, Field(ge=0)] = 0
    limit: Annotated[int, Field(ge=1, le=RESULT_PAGE)] = 50
    state: JobItemState | None = None


JobQuery: TypeAlias = GetJob | ListJobs | GetJobResults


@record
class JobChanged:
    """The job after a command; ``repeated``: the command was executed before."""

    job: JsonObject
    version: int
    repeated: bool = False


@record
class JobWait:
    """Why ``items`` of a job make no progress. ``until`` is when it resolves by itself (RFC 3339), if that is known."""

    kind: BlockerKind
    items: int
    reason: str | None = None
    until: str | None = None


@record
class JobModel:
    """A job. Its id is that of its session, whose stream has every step."""

    job_id: str
    status: JobStatus
    items: int
    counts: ItemCounts
    concurrency: int
    attempts: int
    most_failed: int
    agents: tuple[str, ...]
    created_at: str
    updated_at: str
    title: str | None = None
    labels: dict[str, str] = field(default_factory=dict[str, str])
    parent_task_id: str | None = None
    """The task that delegates it."""
    version: int | None = None
    """Version of its record; in the answer to a command it is next to the job instead."""
    waits: tuple[JobWait, ...] | None = None
    """What its items wait for; absent in lists and in answers to commands."""


@record
class JobItemLine:
    """One item: its state, number of attempts, newest task with its status, and result."""

    item: int
    state: str
    attempts: int
    agent: str
    title: str | None = None
    task_id: str | None = None
    task_status: str | None = None
    percent: int | None = None
    result: str | None = None
    error: ErrorDetail | None = None


@record
class JobResults:
    """Items in order; ``next_page_token`` leads to the next page, and is empty on the last one.

    ``next_after`` is the older form of the token.
    """

    items: tuple[JobItemLine, ...]
    next_after: int | None = None
    next_page_token: str = ""
