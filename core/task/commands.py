"""Commands of a task: one frozen type each; ``core/task/machine.py`` defines when each is allowed."""

from __future__ import annotations

from dataclasses import field
from typing import TYPE_CHECKING, Literal, TypeAlias

from passerelle.core.facts import Coverage, ErrorDetail, Ref, Scope
from passerelle.core.frozen import frozen
from passerelle.core.payloads import task as task_facts
from passerelle.core.payloads.run import ArtifactChanged, ModelRequested, RunStatus
from passerelle.core.task.status import Delivery, Status

if TYPE_CHECKING:
    from collections.abc import Mapping

    from passerelle.core.wire.json import JsonObject


@frozen
class BeginTask:
    """Gives a task its identity; ``accepts`` takes ownership at once."""

    scope: Scope
    created: task_facts.TaskCreated
    accepts: bool = True


@frozen
class AcceptTask:
    """Takes ownership of a draft."""


@frozen
class QueueTask:
    """Queues the task for capacity, or, with the cause ``quota``, until its caller's quota resets."""

    queue: str
    reason: str
    position: int | None = None
    cause: task_facts.QueueCause | None = None
    attempt: task_facts.TaskAttemptStarted | None = None
    """The first or next attempt, as it starts when its turn comes."""
    send_options: JsonObject | None = None
    promoted_ms: int | None = None
    until: str | None = None
    unpaid: Literal[True] | None = None


@frozen
class PrepareTask:
    """Resolves what the work needs."""

    step: str


@frozen
class PutBack:
    """A requirement of the work is missing: the task may be started again."""

    reason: str


@frozen
class StartRun:
    """Opens an attempt: the intent to send."""

    run_id: str
    started: task_facts.TaskAttemptStarted
    refs: Mapping[str, Ref] = field(default_factory=dict[str, Ref])
    thread_id: str | None = None
    """The thread that runs it, if not the task's own: its context at the agent is used."""


@frozen
class SendInput:
    """The intent to send a further message on the live run."""

    requested: ModelRequested


@frozen
class ObserveStatus:
    """A status message of the agent. ``status`` is the mapped state; ``said`` keeps the raw one."""

    status: Status
    said: RunStatus
    step_id: str


@frozen
class ObserveOutput:
    """A chunk of an artifact that is not complete yet."""

    summary: str
    step_id: str
    chunks: int


@frozen
class ObserveArtifact:
    """A complete and stored artifact."""

    artifact: ArtifactChanged
    step_id: str
    refs: Mapping[str, Ref] = field(default_factory=dict[str, Ref])


@frozen
class WaitFor:
    """Waits for input, a permission, a resource, another task or a worker, until ``EndWait``."""

    waiting: task_facts.TaskWaiting
    step_id: str | None = None


@frozen
class EndWait:
    """Ends the wait."""

    reason: str


@frozen
class BlockTask:
    """A named blocker must be resolved first."""

    blocked: task_facts.TaskBlocked


@frozen
class WithholdEnd:
    """The agent is done, but the task is not: callers see its last frame, ``frame``, once the task ends."""

    said: RunStatus
    step_id: str
    frame: Ref


@frozen
class Cover:
    """Records how many of the task's conditions are met now."""

    coverage: Coverage


@frozen
class SuspendTask:
    """Pauses the task."""

    actor: str
    reason: str | None = None


@frozen
class ContinueTask:
    """Resumes after a pause or a block."""

    reason: str


@frozen
class EndRun:
    """The agent ended the run successfully: its terminal state is known."""

    native_status: str
    summary: str | None = None
    text: RunStatus | None = None
    step_id: str | None = None


@frozen
class FailRun:
    """The run did not succeed; a further command decides about the task."""

    status: Status
    error: ErrorDetail
    native_status: str | None = None


@frozen
class RecordDelivery:
    """The result is readable for a consumer, or its delivery is pending."""

    consumer: str
    delivery: Delivery


@frozen
class ReportProgress:
    """A trusted caller reports progress (CMD-7); the status stays."""

    progress: task_facts.TaskProgress


@frozen
class SucceedTask:
    """Completes the task, if every required fact exists (I5)."""

    answer: task_facts.TaskCompleted
    refs: Mapping[str, Ref] = field(default_factory=dict[str, Ref])


@frozen
class EndInError:
    """Ends the task with an error."""

    error: ErrorDetail
    rejected: bool = False


@frozen
class PrepareRetry:
    """Prepares a further attempt."""

    retrying: task_facts.TaskRetrying


@frozen
class LoseTask:
    """Whether the worker lives is unknown."""

    last_proof: str
    reason: str


@frozen
class RequestCancel:
    """Records the request to cancel, before anything is cancelled."""

    requested: task_facts.TaskCancelRequested


@frozen
class ConfirmCancel:
    """The stop is confirmed."""

    cancelled: task_facts.TaskCancelled


@frozen
class TimeOutTask:
    """A limit fired."""

    timed_out: task_facts.TaskTimedOut


@frozen
class DescribeTask:
    """Changes descriptive members of the task; never of a terminal one (CMD-5)."""

    changed: dict[str, JsonObject]


@frozen
class LinkTask:
    """Adds, changes or removes an edge (CMD-13)."""

    edge: task_facts.TaskDependencyUpdated


@frozen
class ArchiveTask:
    """Takes an ended task out of scheduling."""

    archive: str


@frozen
class LeaveBehind:
    """Marks an ended task as rolled back by a boundary of its thread."""

    boundary_id: str


TaskCommand: TypeAlias = (
    BeginTask
    | AcceptTask
    | QueueTask
    | PrepareTask
    | PutBack
    | StartRun
    | SendInput
    | ObserveStatus
    | ObserveOutput
    | ObserveArtifact
    | WaitFor
    | EndWait
    | BlockTask
    | SuspendTask
    | ContinueTask
    | WithholdEnd
    | EndRun
    | FailRun
    | RecordDelivery
    | ReportProgress
    | Cover
    | SucceedTask
    | EndInError
    | PrepareRetry
    | LoseTask
    | RequestCancel
    | ConfirmCancel
    | TimeOutTask
    | DescribeTask
    | LinkTask
    | ArchiveTask
    | LeaveBehind
)
