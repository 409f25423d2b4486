"""The life of a task and of its attempts (EVC-4, EXT-6, TEV-1…TEV-21).

A payload that moves a task says so in the transition table of ``core/task/machine.py``; ``status`` fields stand
only where one class can lead to several statuses.
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
    """Waits for a peer, a queue, a dependency or capacity (TEV-3).

    ``cause`` says why it waits in the outgoing queue of an agent, with ``attempt`` as it will begin and the members of
    its request beside the message; ``position`` counts from 1. ``until``, RFC 3339, is when the quota that it waits
    for resets.
    """

    type: ClassVar = EventType.TASK_QUEUED
    queue: str
    reason: str
    position: int | None = None
    cause: QueueCause | None = None
    attempt: TaskAttemptStarted | None = None
    send_options: JsonObject | None = None
    promoted_ms: int | None = None
    """When its turn was put before all others of its context."""
    until: str | None = None
    unpaid: Literal[True] | None = None
    """No quota of its caller was charged with it yet: that comes before it begins."""


@record
class TaskStarted:
    """First active execution; once per task (TEV-4)."""

    type: ClassVar = EventType.TASK_STARTED


@record
class TaskUpdated:
    """Metadata, owner, constraints or profile changed: each name with its old and new value (TEV-5).

    An owner is named by the id of the principal; the tenant is the same. ``rolled_back`` is the boundary with which its
    thread went back behind the task (EXT-11).
    """

    type: ClassVar = EventType.TASK_UPDATED
    changed: dict[str, JsonObject]
    rolled_back: str | None = None

    @property
    def new_owner(self) -> str | None:
        """The id of the principal whose task it is from here on; None where it stays whose it was."""
        new = self.changed.get("owner", {}).get("new")
        return new if isinstance(new, str) else None


@record
class TaskProgress:
    """Progress, phase, counters or output changed (TEV-6).

    ``status`` moves the task between the statuses in which work is under way; ``native_status`` is the
    peer's own word for it (A2A-7, ST-21).
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
    """What there is to look at by now: names or addresses of output."""
    delivery: Delivery | None = None
    consumer: str | None = None
    silent_since: str | None = None
    """Since when, RFC 3339, the peer has said nothing of a task that is under way (PO-1)."""
    followed_by: str | None = None
    """How it is followed meanwhile: a delivery mechanism (A2A-6)."""
    coverage: Coverage | None = None


MissingResource: TypeAlias = Literal["credential", "quota", "file", "network", "worker", "external"]
"""What is not there: ``worker`` is an agent that dials in, ``external`` one that takes no more work."""


@record
class TaskWaiting:
    """Waits for somebody (TEV-7); ``waiting_for`` and ``status`` go together, and ``resource`` says which one it is.

    ``retry_at``, RFC 3339, says of a message that the peer would not take when it is sent again,
    and ``send_options`` what the request said beside the message.
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
    """SHA-256 of the message that is to be sent, where a hook has changed it."""
    resource: MissingResource | None = None


BlockerKind: TypeAlias = Literal[
    "action", "credential", "policy", "context", "dependency", "tool", "quota"
]
"""What is missing where a task makes no progress."""


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
    """Where a task goes back to that was paused or blocked; without, it is running."""


@record
class TaskRetrying:
    """A further attempt is prepared (TEV-10); ``next_at`` is its time, RFC 3339.

    ``peer`` is the agent that gets it, ``actor`` who asked for it. Where callers have seen the task end, ``exposure``
    is the one under which they see it from here on.
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
    """Stopped (TEV-12); ``native_status`` keeps what the peer said in a race."""

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
    """Ended with an error (TEV-14). ``rejected`` keeps a peer's refusal apart, for the facade."""

    type: ClassVar = EventType.TASK_FAILED
    error: ErrorDetail
    rejected: bool = False


@record
class TaskLost:
    """Nobody can tell whether the worker lives (TEV-15); ``last_proof`` is the last sign of life, RFC 3339."""

    type: ClassVar = EventType.TASK_LOST
    last_proof: str
    reason: str


@record
class TaskCompleted:
    """Ended well: each fact that was reconciled is named (TEV-16, I5)."""

    type: ClassVar = EventType.TASK_COMPLETED
    native_status: str
    artifacts: tuple[str, ...]
    evidence: tuple[str, ...]
    delivery: Delivery
    answer: Literal["task", "message"] = "task"
    coverage: Coverage | None = None
    artifact_count: int = 0
    """How many there are: of many, ``artifacts`` names the first, and ``refs.artifacts`` all of them."""


@record
class TaskArchived:
    """Out of scheduling (TEV-17)."""

    type: ClassVar = EventType.TASK_ARCHIVED
    archive: str


@record
class TaskDelegated:
    """A child task, subagent, job or worker was assigned (TEV-18); ``items`` is how many a job has."""

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

    ``message_id`` and ``remote_context_id`` are what the peer is told, so that a run whose send has an
    unknown outcome can be found again at the peer.
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
    """Our span in the caller's trace, as the peer is told of it; so that whoever drives the run later says the same."""
    tracestate: str | None = None
    gated: bool = False
    """Whether policy has to let the message through first: until then nothing was sent."""
    extensions: tuple[str, ...] = ()
    """URIs of A2A extensions that the caller asks for, on every call of the run."""


@record
class TaskAttemptCompleted:
    """A run ended well (TEV-20)."""

    type: ClassVar = EventType.TASK_ATTEMPT_COMPLETED
    native_status: str
    summary: str | None = None


@record
class TaskAttemptFailed:
    """A run ended otherwise; ``status`` tells failed, lost, timed out and cancelled apart (ATT-3, ATT-11)."""

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
