"""What can be told to a task: one frozen type per command; ``core/task/machine.py`` says when each is allowed."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, TypeAlias

from passerelle.core.facts import Coverage, ErrorDetail, Ref, Scope
from passerelle.core.payloads import task as say
from passerelle.core.payloads.run import ArtifactChanged, ModelRequested, RunStatus
from passerelle.core.task.status import Delivery, Status

if TYPE_CHECKING:
    from collections.abc import Mapping

    from passerelle.core.wire.json import JsonObject


@dataclass(frozen=True, slots=True)
class BeginTask:
    """Gives a task its identity; ``accepts`` takes ownership at once."""

    scope: Scope
    created: say.TaskCreated
    accepts: bool = True


@dataclass(frozen=True, slots=True)
class AcceptTask:
    """Takes ownership of a draft."""


@dataclass(frozen=True, slots=True)
class QueueTask:
    """Waits for capacity, or, with the cause ``quota``, for what its caller may use up."""

    queue: str
    reason: str
    position: int | None = None
    cause: say.QueueCause | None = None
    attempt: say.TaskAttemptStarted | None = None
    """The first or the next attempt as it begins when its turn has come."""
    send_options: JsonObject | None = None
    promoted_ms: int | None = None
    until: str | None = None
    unpaid: Literal[True] | None = None


@dataclass(frozen=True, slots=True)
class PrepareTask:
    """Resolves what the work needs."""

    step: str


@dataclass(frozen=True, slots=True)
class PutBack:
    """What the work needs is not there: the task may be started again."""

    reason: str


@dataclass(frozen=True, slots=True)
class StartRun:
    """Opens an attempt: the intent to send."""

    run_id: str
    started: say.TaskAttemptStarted
    refs: Mapping[str, Ref] = field(default_factory=dict[str, Ref])
    thread_id: str | None = None
    """The thread that runs it, where it is another one than the task's own: its context at the agent is the run's."""


@dataclass(frozen=True, slots=True)
class SendInput:
    """The intent to send a further message on the live run."""

    requested: ModelRequested


@dataclass(frozen=True, slots=True)
class ObserveStatus:
    """A word of the peer. ``status`` is what its state means here; ``said`` keeps the raw word."""

    status: Status
    said: RunStatus
    step_id: str


@dataclass(frozen=True, slots=True)
class ObserveOutput:
    """A part of an artifact that is not whole yet."""

    summary: str
    step_id: str
    chunks: int


@dataclass(frozen=True, slots=True)
class ObserveArtifact:
    """An artifact that is whole and stored."""

    artifact: ArtifactChanged
    step_id: str
    refs: Mapping[str, Ref] = field(default_factory=dict[str, Ref])


@dataclass(frozen=True, slots=True)
class WaitFor:
    """Waits for somebody; no progress until ``EndWait``."""

    waiting: say.TaskWaiting
    step_id: str | None = None


@dataclass(frozen=True, slots=True)
class EndWait:
    """What was waited for is there."""

    reason: str


@dataclass(frozen=True, slots=True)
class BlockTask:
    """A named blocker must be resolved first."""

    blocked: say.TaskBlocked


@dataclass(frozen=True, slots=True)
class WithholdEnd:
    """The peer is done, and the task is not: ``frame`` names its last frame, which callers see once the task ends."""

    said: RunStatus
    step_id: str
    frame: Ref


@dataclass(frozen=True, slots=True)
class Cover:
    """How many of the task's conditions are met now."""

    coverage: Coverage


@dataclass(frozen=True, slots=True)
class SuspendTask:
    """Stops on purpose."""

    actor: str
    reason: str | None = None


@dataclass(frozen=True, slots=True)
class ContinueTask:
    """Goes on after a pause or a block."""

    reason: str


@dataclass(frozen=True, slots=True)
class EndRun:
    """The peer ended the run well: its terminal state is known."""

    native_status: str
    summary: str | None = None
    text: RunStatus | None = None
    step_id: str | None = None


@dataclass(frozen=True, slots=True)
class FailRun:
    """The run ended otherwise; what becomes of the task is another command."""

    status: Status
    error: ErrorDetail
    native_status: str | None = None


@dataclass(frozen=True, slots=True)
class RecordDelivery:
    """The result is readable for a consumer, or owed to it."""

    consumer: str
    delivery: Delivery


@dataclass(frozen=True, slots=True)
class ReportProgress:
    """Somebody trusted says how far it is (CMD-7); the status stays."""

    progress: say.TaskProgress


@dataclass(frozen=True, slots=True)
class SucceedTask:
    """Ends the task well, if every fact is there (I5)."""

    answer: say.TaskCompleted
    refs: Mapping[str, Ref] = field(default_factory=dict[str, Ref])


@dataclass(frozen=True, slots=True)
class EndInError:
    """Ends the task with an error."""

    error: ErrorDetail
    rejected: bool = False


@dataclass(frozen=True, slots=True)
class PrepareRetry:
    """Prepares a further attempt."""

    retrying: say.TaskRetrying


@dataclass(frozen=True, slots=True)
class LoseTask:
    """Nobody can tell whether the worker lives."""

    last_proof: str
    reason: str


@dataclass(frozen=True, slots=True)
class RequestCancel:
    """Records the wish to cancel, before anything is cancelled."""

    requested: say.TaskCancelRequested


@dataclass(frozen=True, slots=True)
class ConfirmCancel:
    """The stop is known."""

    cancelled: say.TaskCancelled


@dataclass(frozen=True, slots=True)
class TimeOutTask:
    """A limit fired."""

    timed_out: say.TaskTimedOut


@dataclass(frozen=True, slots=True)
class DescribeTask:
    """Changes what describes the task; never a terminal one (CMD-5)."""

    changed: dict[str, JsonObject]


@dataclass(frozen=True, slots=True)
class LinkTask:
    """Makes, changes or removes an edge (CMD-13)."""

    edge: say.TaskDependencyUpdated


@dataclass(frozen=True, slots=True)
class ArchiveTask:
    """Takes an ended task out of scheduling."""

    archive: str


@dataclass(frozen=True, slots=True)
class LeaveBehind:
    """Marks a task that has ended: its thread went back behind it, with a boundary."""

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
