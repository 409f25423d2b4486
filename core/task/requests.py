"""Requests of a caller about its tasks: what ``/v1``, channels and the command line offer under these names.

Each class is also the wire form: the documented schemas are generated from these. ``version`` is that of the record as
the caller read it; if the record has changed since, the command changes nothing (CMD-5). ``core/task/machine.py``
defines the allowed statuses.
"""

from __future__ import annotations

from dataclasses import field
from typing import Annotated, Literal, TypeAlias

from pydantic import Field

from passerelle.core.facts import EdgeKind, TaskBounds
from passerelle.core.frozen import frozen
from passerelle.core.task.status import Delivery, OwnPhase, Status, Visibility
from passerelle.core.wire.json import Json, JsonObject
from passerelle.core.wire.record import record

MOST_BEFORE = 16
"""Tasks that one message can wait for: each takes two facts in its append."""
PAGE_LIMIT = 200
TaskFamily: TypeAlias = Literal["delegation", "job_item", "local_worker", "message"]
"""The coarse group of a task (TR-5); a task that its agent answered with a bare Message is a ``message``."""

Id: TypeAlias = Annotated[str, Field(min_length=1, max_length=255)]
RecordVersion: TypeAlias = Annotated[int, Field(ge=1)]
ReasonText: TypeAlias = Annotated[str, Field(max_length=1_000)]
Title: TypeAlias = Annotated[str, Field(min_length=1, max_length=200)]
Objective: TypeAlias = Annotated[str, Field(min_length=1, max_length=8_000)]
Priority: TypeAlias = Annotated[int, Field(ge=-100, le=100)]
Acceptance: TypeAlias = Annotated[tuple[JsonObject, ...], Field(max_length=8)]
TaskText: TypeAlias = Annotated[str, Field(min_length=1, max_length=1_000)]
Propagation: TypeAlias = Literal["none", "subtree"]
"""The reach of a verb: the task alone, or also every task below it that accepts the verb (CMD-31)."""


@record
class CreateTask:
    """Create a task with an objective for an agent, without starting it (CMD-4). A draft is not accepted yet."""

    agent: Id
    objective: Objective
    title: Title | None = None
    draft: bool = False
    context_id: Id | None = None
    session_id: Id | None = None
    parent_task_id: Id | None = None
    priority: Priority = 0
    visibility: Visibility = Visibility.BACKGROUND
    """``hidden`` requires the scope to operate the runtime, as does reading it."""
    constraints: JsonObject = field(default_factory=dict[str, Json])
    profile: JsonObject = field(default_factory=dict[str, Json])
    acceptance: Acceptance = ()
    metadata: JsonObject | None = None
    scope: TaskBounds | None = None


@record
class UpdateTask:
    """Change the description of a task that has not ended; absent members stay (CMD-5)."""

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
    """Transfer a task that has not ended to another owner in the same tenant, who alone has it then (TEV-5).

    ``owner`` is the name of a caller: a client of the settings, ``owner``, or ``<issuer>:<subject>``.
    """

    task_id: Id
    owner: Id
    version: RecordVersion | None = None


@frozen
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
    """Set the progress of a task; absent members stay (CMD-7). ``consumer`` and ``delivery`` go together."""

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
    """Resume a task that is paused, lost or unknown, or blocked by no task (CMD-8).

    Of the tasks below it the paused ones resume.
    """

    task_id: Id
    version: RecordVersion | None = None
    reason: ReasonText | None = None
    propagation: Propagation = "none"
    thread_id: Id | None = None
    """A thread of its session in whose contexts its attempts begin from now on (GR-6); absent: unchanged."""


@record
class CompleteTask:
    """Complete a task, if every required fact exists (CMD-11, I5)."""

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
    """Retry a task that has ended, is lost, or waits for its next attempt (CMD-10).

    Of the tasks below it those that failed, timed out, were cancelled or are lost are retried.

    Without an agent the first requested one is used. If callers have seen the task end, it continues under another id:
    ``exposure`` of the record.
    """

    task_id: Id
    reason: Annotated[str, Field(min_length=1, max_length=1_000)]
    version: RecordVersion | None = None
    agent: Id | None = None
    """For the task itself: tasks below it go to their own requested agents."""
    propagation: Propagation = "none"


@record
class LinkTasks:
    """Add an edge from a task to another task, or to another named object (CMD-13)."""

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
    """Tasks of the caller, by status time, newest first (CMD-12).

    ``owners`` ``all`` lists those of every owner in the caller's tenant, each with its ``owner``, for overseers.
    ``since`` and ``until`` are RFC 3339 status times; ``text`` matches the title, ignoring case. ``q`` is an id (of the
    task, its context, session, thread, a run, a sent message, or the task at the agent), or matches the title. Without
    ``visibility`` foreground and background tasks are listed.
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
    """A task that did not change, and the error code."""

    task_id: str
    code: str
    message: str


@record
class SubtreeChanged:
    """How many tasks changed, the top one included, and the first of those that did not.

    ``done``: all are processed. Otherwise the gateway continues after the answer.
    """

    changed: int
    done: bool
    unchanged: tuple[UnchangedTask, ...] = ()


@record
class TaskChanged:
    """The record after a command, and its version; ``repeated``: the command was executed before."""

    task: JsonObject
    version: int
    repeated: bool = False
    subtree: SubtreeChanged | None = None


@record
class TaskGiven:
    """The new owner of a task. The record is not shown, since the previous owner may not read it any more."""

    task_id: str
    owner: str
    version: int
    repeated: bool = False
