"""The life of a task and of its attempts (EVC-4, EXT-6, TEV-1…TEV-21).

The transition table of ``core/task/machine.py`` lists the payloads that change a task's status; a class has a
``status`` field only if it can lead to several statuses.
"""

from __future__ import annotations

from dataclasses import field
from typing import ClassVar, Literal, TypeAlias

from passerelle.core.event_type import EventType
from passerelle.core.facts import (
    Coverage,
    EdgeKind,
    EdgeStatus,
    ErrorDetail,
    RetryPolicy,
    TaskBounds,
    Worker,
)
from passerelle.core.task.status import Delivery, PhaseName, Status, Visibility
from passerelle.core.wire.json import Json, JsonObject
from passerelle.core.wire.record import record


@record
class TaskCreated:
    """Identity and first objective exist (TEV-1)."""

    type: ClassVar = EventType.TASK_CREATED
    objective: str
    title: str
    kind: str
    family: Literal["delegation", "job_item", "local_worker", "message"]
    requested_by: str
    owner: str
    tenant: str
    context_id: str
    assignee: str | None = None
    visibility: Visibility = Visibility.FOREGROUND
    priority: int = 0
    parent_task_id: str | None = None
    root_task_id: str | None = None
    constraints: JsonObject = field(default_factory=dict[str, Json])
    profile: JsonObject = field(default_factory=dict[str, Json])
    acceptance: tuple[JsonObject, ...] = ()
    metadata: JsonObject | None = None
    scope: TaskBounds | None = None


@record
class TaskAccepted:
    """The runtime took ownership (TEV-2)."""

    type: ClassVar = EventType.TASK_ACCEPTED


QueueCause: TypeAlias = Literal["paused", "draining", "capacity", "turn", "after", "quota"]


@record
class TaskQueued:
    """Waits for an agent, a queue, a dependency or capacity (TEV-3).

    ``cause`` is why it waits in the outgoing queue of an agent, with ``attempt`` as it will start and the other members
    of its request; ``position`` counts from 1. ``until``, RFC 3339, is when the quota resets.
    """

    type: ClassVar = EventType.TASK_QUEUED
    queue: str
    reason: str
    position: int | None = None
    cause: QueueCause | None = None
    attempt: TaskAttemptStarted | None = None
    send_options: JsonObject | None = None
    promoted_ms: int | None = None
    """When its turn was moved to the front of its context's queue."""
    until: str | None = None
    unpaid: Literal[True] | None = None
    """It was not charged to the caller's quota yet: that happens before it starts."""


@record
class TaskStarted:
    """First active execution; once per task (TEV-4)."""

    type: ClassVar = EventType.TASK_STARTED


@record
class TaskUpdated:
    """Metadata, owner, constraints or profile changed: each name with its old and new value (TEV-5).

    An owner is named by the id of the principal; the tenant stays. ``rolled_back`` is the boundary of a rollback that
    removed the task from its thread (EXT-11).
    """

    type: ClassVar = EventType.TASK_UPDATED
    changed: dict[str, JsonObject]
    rolled_back: str | None = None

    @property
    def new_owner(self) -> str | None:
        """The id of the new owner's principal; None if the owner did not change."""
        new = self.changed.get("owner", {}).get("new")
        return new if isinstance(new, str) else None


@record
class TaskProgress:
    """Progress, phase, counters or output changed (TEV-6).

    ``status`` moves the task between the statuses of active work; ``native_status`` is the agent's own word for it
    (A2A-7, ST-21).
    """

    type: ClassVar = EventType.TASK_PROGRESS
    phase: PhaseName | None = None
    status: Status | None = None
    native_status: str | None = None
    percent: int | None = None
    step: str | None = None
    summary: str | None = None
    counters: dict[str, int] = field(default_factory=dict[str, int])
    checklist: tuple[JsonObject, ...] = ()
    outputs: tuple[str, ...] | None = None
    """Output that is available now: names or addresses."""
    delivery: Delivery | None = None
    consumer: str | None = None
    silent_since: str | None = None
    """Since when, RFC 3339, the agent of an active task has sent nothing (PO-1)."""
    followed_by: str | None = None
    """How it is followed meanwhile: a delivery mechanism (A2A-6)."""
    coverage: Coverage | None = None


MissingResource: TypeAlias = Literal["credential", "quota", "file", "network", "worker", "external"]
"""The missing resource: ``worker`` is an agent that dials in, ``external`` one that accepts no more work."""


@record
class TaskWaiting:
    """Waits (TEV-7); ``waiting_for`` and ``status`` match, and ``resource`` names a missing resource.

    ``retry_at``, RFC 3339, is when a message that the agent refused is sent again, with ``send_options``, the other
    members of its request.
    """

    type: ClassVar = EventType.TASK_WAITING
    waiting_for: Literal["input", "permission", "resource", "dependency", "worker"]
    status: Status
    reason: str | None = None
    action_ids: tuple[str, ...] = ()
    native_status: str | None = None
    retry_at: str | None = None
    send_options: JsonObject | None = None
    updated_input: str | None = None
    """SHA-256 of the message to send, if a hook changed it."""
    resource: MissingResource | None = None


BlockerKind: TypeAlias = Literal[
    "action", "credential", "policy", "context", "dependency", "tool", "quota"
]
"""The kind of blocker of a task that makes no progress."""


@record
class TaskBlocked:
    """A named blocker must be resolved (TEV-8)."""

    type: ClassVar = EventType.TASK_BLOCKED
    blocker: str
    blocker_kind: BlockerKind
    reason: str


@record
class TaskPaused:
    """Stopped on purpose (TEV-9)."""

    type: ClassVar = EventType.TASK_PAUSED
    actor: str
    reason: str | None = None


@record
class TaskResumed:
    """Goes on after a pause, a wait, a block or a loss (TEV-9)."""

    type: ClassVar = EventType.TASK_RESUMED
    reason: str
    native_status: str | None = None
    status: Status | None = None
    """The status that a paused or blocked task returns to; without it, the task is running."""


@record
class TaskRetrying:
    """A further attempt is prepared (TEV-10); ``next_at`` is its time, RFC 3339.

    ``peer`` is the agent that gets it, ``actor`` who requested it. If callers have seen the task end, they see it under
    ``exposure`` from now on.
    """

    type: ClassVar = EventType.TASK_RETRYING
    reason: str
    ordinal: int
    next_at: str | None = None
    peer: str | None = None
    actor: str | None = None
    exposure: int | None = None


@record
class TaskCancelRequested:
    """The intent to cancel, before anything is cancelled (TEV-11, CMD-9)."""

    type: ClassVar = EventType.TASK_CANCEL_REQUESTED
    actor: str
    source: Literal["user", "policy", "runtime", "peer"]
    propagation: Literal["none", "active_run", "subtree"]
    reason: str | None = None


@record
class TaskCancelled:
    """Stopped (TEV-12); ``native_status`` keeps the agent's state if both raced."""

    type: ClassVar = EventType.TASK_CANCELLED
    actor: str
    source: Literal["user", "policy", "runtime", "peer"]
    native_status: str | None = None


@record
class TaskTimedOut:
    """A time or inactivity limit fired (TEV-13)."""

    type: ClassVar = EventType.TASK_TIMED_OUT
    limit: Literal["total", "idle"]
    limit_ms: int


@record
class TaskFailed:
    """Ended with an error (TEV-14). ``rejected``: the agent refused the task, which callers see as its own state."""

    type: ClassVar = EventType.TASK_FAILED
    error: ErrorDetail
    rejected: bool = False


@record
class TaskLost:
    """It is unknown whether the worker is alive (TEV-15); ``last_proof`` is when it last responded, RFC 3339."""

    type: ClassVar = EventType.TASK_LOST
    last_proof: str
    reason: str


@record
class TaskCompleted:
    """Succeeded: each reconciled fact is named (TEV-16, I5)."""

    type: ClassVar = EventType.TASK_COMPLETED
    native_status: str
    artifacts: tuple[str, ...]
    evidence: tuple[str, ...]
    delivery: Delivery
    answer: Literal["task", "message"] = "task"
    coverage: Coverage | None = None
    artifact_count: int = 0
    """Number of artifacts: of many, ``artifacts`` names the first, and ``refs.artifacts`` all."""


@record
class TaskArchived:
    """Out of scheduling (TEV-17)."""

    type: ClassVar = EventType.TASK_ARCHIVED
    archive: str


@record
class TaskDelegated:
    """A child task, subagent, job or worker was assigned (TEV-18); ``items`` is the number of items of a job."""

    type: ClassVar = EventType.TASK_DELEGATED
    target_kind: Literal["child_task", "subagent", "job", "worker"]
    target: str
    items: int | None = None


@record
class TaskDependencyUpdated:
    """An edge of the task graph appeared or changed (TEV-19, GR-1…GR-10)."""

    type: ClassVar = EventType.TASK_DEPENDENCY_UPDATED
    edge_id: str
    kind: EdgeKind
    target: str
    status: EdgeStatus
    previous: EdgeStatus | None = None
    reason: str | None = None


@record
class TaskAttemptStarted:
    """A run begins: the intent to send, stored before anything is sent (TEV-20).

    ``message_id`` and ``remote_context_id`` are sent to the agent, so that a run whose send has an unknown outcome can
    be found again there.
    """

    type: ClassVar = EventType.TASK_ATTEMPT_STARTED
    ordinal: int
    worker: Worker
    native_protocol: str
    delivery_mechanism: Literal["unary", "streaming", "subscription", "polling", "push", "custom"]
    message_id: str
    retry_policy: RetryPolicy
    reason: str
    remote_context_id: str | None = None
    remote_task_id: str | None = None
    traceparent: str | None = None
    """The gateway's span in the caller's trace, as sent to the agent; a later driver of the run sends the same."""
    tracestate: str | None = None
    gated: bool = False
    """Whether policy must allow the message first: until then nothing was sent."""
    extensions: tuple[str, ...] = ()
    """URIs of the A2A extensions that the caller requested, for every call of the run."""


@record
class TaskAttemptCompleted:
    """A run succeeded (TEV-20)."""

    type: ClassVar = EventType.TASK_ATTEMPT_COMPLETED
    native_status: str
    summary: str | None = None


@record
class TaskAttemptFailed:
    """A run did not succeed; ``status`` is failed, lost, timed out or cancelled (ATT-3, ATT-11)."""

    type: ClassVar = EventType.TASK_ATTEMPT_FAILED
    status: Status
    error: ErrorDetail
    native_status: str | None = None


TaskPayload: TypeAlias = (
    TaskCreated
    | TaskAccepted
    | TaskQueued
    | TaskStarted
    | TaskUpdated
    | TaskProgress
    | TaskWaiting
    | TaskBlocked
    | TaskPaused
    | TaskResumed
    | TaskRetrying
    | TaskCancelRequested
    | TaskCancelled
    | TaskTimedOut
    | TaskFailed
    | TaskLost
    | TaskCompleted
    | TaskArchived
    | TaskDelegated
    | TaskDependencyUpdated
    | TaskAttemptStarted
    | TaskAttemptCompleted
    | TaskAttemptFailed
)
