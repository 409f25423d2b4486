"""What a caller can ask of a task of its own: what ``/v1``, channels and the command line offer under these names.

Each is the form in which it is sent, too: the documented schemas are made from these. ``version`` is that of the record
as the caller read it; where it is given and the record has moved on, nothing is changed (CMD-5).
``core/task/machine.py`` says in which status a task takes what.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Literal, TypeAlias

from pydantic import Field

from passerelle.core.facts import EdgeKind, TaskBounds
from passerelle.core.task.status import Delivery, OwnPhase, Status, Visibility
from passerelle.core.wire.json import Json, JsonObject
from passerelle.core.wire.record import record

MOST_BEFORE = 16
"""Tasks that have to complete before one message: each has two facts in the append that takes it."""
PAGE_LIMIT = 200
TaskFamily: TypeAlias = Literal["delegation", "job_item", "local_worker", "message"]
"""The coarse group of a task (TR-5); one that its agent answered with a bare Message is a ``message``."""

Id: TypeAlias = Annotated[str, Field(min_length=1, max_length=255)]
RecordVersion: TypeAlias = Annotated[int, Field(ge=1)]
ReasonText: TypeAlias = Annotated[str, Field(max_length=1_000)]
Title: TypeAlias = Annotated[str, Field(min_length=1, max_length=200)]
Objective: TypeAlias = Annotated[str, Field(min_length=1, max_length=8_000)]
Priority: TypeAlias = Annotated[int, Field(ge=-100, le=100)]
Acceptance: TypeAlias = Annotated[tuple[JsonObject, ...], Field(max_length=8)]
TaskText: TypeAlias = Annotated[str, Field(min_length=1, max_length=1_000)]
Propagation: TypeAlias = Literal["none", "subtree"]
"""Whom a verb reaches: the task alone, or also every task below it that takes the verb (CMD-31)."""


@record
class CreateTask:
    """A task with an objective, for an agent, that nobody works on yet (CMD-4). A draft is not accepted either."""

    agent: Id
    objective: Objective
    title: Title | None = None
    draft: bool = False
    context_id: Id | None = None
    session_id: Id | None = None
    parent_task_id: Id | None = None
    priority: Priority = 0
    visibility: Visibility = Visibility.BACKGROUND
    """``hidden`` takes the right to operate the runtime, as does reading it."""
    constraints: JsonObject = field(default_factory=dict[str, Json])
    profile: JsonObject = field(default_factory=dict[str, Json])
    acceptance: Acceptance = ()
    metadata: JsonObject | None = None
    scope: TaskBounds | None = None


@record
class UpdateTask:
    """Other words for a task that has not ended; what is left out stays (CMD-5)."""

    task_id: Id
    version: RecordVersion | None = None
    title: Title | None = None
    objective: Objective | None = None
    priority: Priority | None = None
    assignee: Id | None = None
    constraints: JsonObject | None = None
    profile: JsonObject | None = None
    acceptance: Acceptance | None = None
    metadata: JsonObject | None = None


@record
class GiveTask:
    """Give a task that has not ended to somebody else in the same tenant; from then on it is theirs alone (TEV-5).

    ``owner`` is named as callers are: a client of the settings, ``owner``, or ``<issuer>:<subject>``.
    """

    task_id: Id
    owner: Id
    version: RecordVersion | None = None


@dataclass(frozen=True, slots=True)
class StartTask:
    """Send a task to an agent (CMD-6). Without a message its objective is sent; without an agent, to its assignee."""

    task_id: str
    source: Literal["a2a", "channel", "http", "cli", "schedule", "job"]
    version: int | None = None
    agent: str | None = None
    message: JsonObject | None = None
    traceparent: str | None = None
    tracestate: str | None = None


@record
class AppendTaskProgress:
    """How far a task is; what is left out stays (CMD-7). ``consumer`` and ``delivery`` go together."""

    task_id: Id
    version: RecordVersion | None = None
    phase: OwnPhase | None = None
    percent: Annotated[int, Field(ge=0, le=100)] | None = None
    step: Annotated[str, Field(max_length=200)] | None = None
    summary: Annotated[str, Field(max_length=2_000)] | None = None
    counters: Annotated[
        dict[str, Annotated[int, Field(ge=-(2**53), le=2**53)]], Field(max_length=32)
    ] = field(default_factory=dict[str, int])
    checklist: Annotated[tuple[JsonObject, ...], Field(max_length=64)] = ()
    outputs: Annotated[tuple[TaskText, ...], Field(max_length=32)] | None = None
    consumer: Id | None = None
    delivery: Delivery | None = None


@record
class PauseTask:
    """Send nothing more for a task until it is resumed; its run is kept (CMD-8)."""

    task_id: Id
    version: RecordVersion | None = None
    reason: ReasonText | None = None
    propagation: Propagation = "none"


@record
class ResumeTask:
    """Go on with a task that is paused, lost or not known, or blocked by no task (CMD-8).

    Of those below it the ones that are paused go on.
    """

    task_id: Id
    version: RecordVersion | None = None
    reason: ReasonText | None = None
    propagation: Propagation = "none"
    thread_id: Id | None = None
    """A thread of its session in whose contexts its attempts begin from here on (GR-6); absent: as before."""


@record
class CompleteTask:
    """End a task well, if every fact is there (CMD-11, I5)."""

    task_id: Id
    version: RecordVersion | None = None
    summary: ReasonText | None = None


@record
class FailTask:
    """End a task with an error (CMD-11)."""

    task_id: Id
    version: RecordVersion | None = None
    code: Annotated[str, Field(min_length=1, max_length=64, pattern="^[a-z][a-z0-9_]*$")] = "failed"
    reason: ReasonText = "failed by its owner"


@record
class RetryTask:
    """Try a task again that has ended, is lost, or waits for its next attempt (CMD-10).

    Of those below it the ones that have failed, timed out, were cancelled or are lost are tried again.

    Without an agent it is the one that was asked first. Where callers have seen the task end it goes on under another
    id: ``exposure`` of the record says which.
    """

    task_id: Id
    reason: Annotated[str, Field(min_length=1, max_length=1_000)]
    version: RecordVersion | None = None
    agent: Id | None = None
    """Of the task itself: those below it go to the agents that they were asked of."""
    propagation: Propagation = "none"


@record
class LinkTasks:
    """An edge from a task to another task, or to something else that has a name (CMD-13)."""

    task_id: Id
    kind: EdgeKind
    target: TaskText
    version: RecordVersion | None = None
    reason: ReasonText | None = None


@record
class UnlinkTasks:
    """Mark an edge as removed; it stays in the record (CMD-13)."""

    task_id: Id
    kind: EdgeKind
    target: TaskText
    version: RecordVersion | None = None
    reason: ReasonText | None = None


TaskRequest: TypeAlias = (
    CreateTask
    | UpdateTask
    | GiveTask
    | StartTask
    | AppendTaskProgress
    | PauseTask
    | ResumeTask
    | CompleteTask
    | FailTask
    | RetryTask
    | LinkTasks
    | UnlinkTasks
)


@record
class ListRecords:
    """Tasks of the caller, by the time of their status, newest first (CMD-12).

    ``owners`` ``all`` lists those of everybody in the caller's tenant, each with its ``owner``, for whoever oversees.
    ``since`` and ``until`` are RFC 3339 times of the status; ``text`` stands in the title, in any case. ``q`` is an id,
    of the task, its context, session, thread, a run, a message that was sent, or the task at the agent; or it stands in
    the title. Without ``visibility`` those of the foreground and the background are meant.
    """

    status: Annotated[tuple[Status, ...], Field(max_length=20)] = ()
    visibility: Annotated[tuple[Visibility, ...], Field(max_length=4)] = ()
    family: Annotated[tuple[TaskFamily, ...], Field(max_length=4)] = ()
    agent: Id | None = None
    session_id: Id | None = None
    context_id: Id | None = None
    since: Annotated[str, Field(max_length=40)] | None = None
    until: Annotated[str, Field(max_length=40)] | None = None
    text: Annotated[str, Field(min_length=1, max_length=200)] | None = None
    q: Annotated[str, Field(min_length=1, max_length=256)] | None = None
    page_size: Annotated[int, Field(ge=1, le=PAGE_LIMIT)] = 50
    page_token: Annotated[str, Field(max_length=512)] | None = None
    owners: Literal["mine", "all"] = "mine"


@record
class UnchangedTask:
    """A task that did not take the verb, and the code of why."""

    task_id: str
    code: str
    message: str


@record
class SubtreeChanged:
    """How many tasks took the verb, the one at the top included, and the first of those that did not.

    ``done``: all are reached. Otherwise the gateway goes on behind the answer.
    """

    changed: int
    done: bool
    unchanged: tuple[UnchangedTask, ...] = ()


@record
class TaskChanged:
    """The record after a command, and its version; ``repeated``: the command had been carried out before."""

    task: JsonObject
    version: int
    repeated: bool = False
    subtree: SubtreeChanged | None = None


@record
class TaskGiven:
    """Whose a task is now. Its record is not shown: whoever has given it away need not be who may read it."""

    task_id: str
    owner: str
    version: int
    repeated: bool = False
