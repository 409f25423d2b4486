"""Task commands, random or one of each, and a stream that folds the resulting facts."""

from __future__ import annotations

from dataclasses import dataclass, field

from hypothesis import strategies as st

from passerelle.core.errors import CallerError
from passerelle.core.events import Event, Fact
from passerelle.core.facts import (
    Coverage,
    ErrorCategory,
    ErrorDetail,
    Ref,
    RetryPolicy,
    Scope,
    Worker,
)
from passerelle.core.payloads import task as task_facts
from passerelle.core.payloads.run import ArtifactChanged, ModelRequested, RunStatus
from passerelle.core.task import machine as tasks
from passerelle.core.task.commands import (
    AcceptTask,
    ArchiveTask,
    BeginTask,
    BlockTask,
    ConfirmCancel,
    ContinueTask,
    Cover,
    DescribeTask,
    EndInError,
    EndRun,
    EndWait,
    FailRun,
    LeaveBehind,
    LinkTask,
    LoseTask,
    ObserveArtifact,
    ObserveOutput,
    ObserveStatus,
    PrepareRetry,
    PrepareTask,
    PutBack,
    QueueTask,
    RecordDelivery,
    ReportProgress,
    RequestCancel,
    SendInput,
    StartRun,
    SucceedTask,
    SuspendTask,
    TaskCommand,
    TimeOutTask,
    WaitFor,
    WithholdEnd,
)
from passerelle.core.task.fold import evolve
from passerelle.core.task.record import TaskRecord
from passerelle.core.task.status import Delivery, Status
from passerelle.core.wire.times import format_ms

SCOPE = Scope("se_1", "th_1", "turn_1", "task_1")
FAILURE = ErrorDetail("peer_failed", ErrorCategory.PEER, "it broke")
CREATED = task_facts.TaskCreated(
    objective="say hello",
    title="say hello",
    kind="echo",
    family="delegation",
    requested_by="owner",
    owner="pr_1",
    tenant="default",
    context_id="ctx_1",
)
STARTED = task_facts.TaskAttemptStarted(
    ordinal=1,
    worker=Worker("agent", "echo"),
    native_protocol="a2a/1.0",
    delivery_mechanism="unary",
    message_id="m-1",
    retry_policy=RetryPolicy(),
    reason="first",
    remote_context_id="rctx_1",
)
ARTIFACT = ArtifactChanged(
    artifact_id="art_1", name_at_peer="a", version=1, sha256="0" * 64, size=3, parts=1
)

ONE_OF_EACH: tuple[TaskCommand, ...] = (
    BeginTask(SCOPE, CREATED),
    AcceptTask(),
    QueueTask("peer:echo", "busy", 1),
    PrepareTask("card"),
    StartRun("run_1", STARTED),
    SendInput(ModelRequested("echo", "SendMessage", "m-2")),
    ObserveStatus(Status.RUNNING, RunStatus(native_status="W", text="at it"), "step_1"),
    ObserveOutput("artifact a", "step_2", 1),
    ObserveArtifact(ARTIFACT, "step_3"),
    WaitFor(task_facts.TaskWaiting("input", Status.WAITING_INPUT, action_ids=("act_1",))),
    EndWait("answered"),
    BlockTask(task_facts.TaskBlocked("task_2", "dependency", "waits for task_2")),
    SuspendTask("owner"),
    ContinueTask("go on"),
    EndRun("TASK_STATE_COMPLETED"),
    FailRun(Status.FAILED, FAILURE),
    RecordDelivery("facade", Delivery.DELIVERED),
    SucceedTask(task_facts.TaskCompleted("TASK_STATE_COMPLETED", (), (), Delivery.DELIVERED)),
    EndInError(FAILURE),
    PrepareRetry(task_facts.TaskRetrying("peer_failed", 2)),
    LoseTask(format_ms(0), "out of reach"),
    RequestCancel(task_facts.TaskCancelRequested("owner", "user", "active_run")),
    ConfirmCancel(task_facts.TaskCancelled("owner", "user")),
    TimeOutTask(task_facts.TaskTimedOut("total", 1000)),
    DescribeTask({"title": {"old": "say hello", "new": "hello"}}),
    LinkTask(task_facts.TaskDependencyUpdated("edge_1", "source_task", "task_9", "open")),
    ArchiveTask("archive/1"),
    ReportProgress(task_facts.TaskProgress(percent=40, step="2 of 5")),
    WithholdEnd(RunStatus(native_status="TASK_STATE_COMPLETED"), "step_1", Ref(blob="0" * 64)),
    Cover(Coverage(1, 2, "pending", ("an artifact",))),
    PutBack("no card"),
    LeaveBehind("bd_1"),
)

STATUSES = st.sampled_from([Status.QUEUED, Status.RUNNING, Status.UNKNOWN])
WAITS = st.sampled_from(
    [
        task_facts.TaskWaiting("input", Status.WAITING_INPUT),
        task_facts.TaskWaiting("permission", Status.WAITING_PERMISSION),
        task_facts.TaskWaiting("resource", Status.WAITING_RESOURCE),
    ]
)
COMMANDS: st.SearchStrategy[TaskCommand] = st.one_of(
    st.sampled_from(ONE_OF_EACH[1:]),
    st.builds(
        ObserveStatus,
        STATUSES,
        st.builds(RunStatus, native_status=st.sampled_from(["A", "B"])),
        st.just("step_9"),
    ),
    st.builds(WaitFor, WAITS),
    st.builds(StartRun, st.sampled_from(["run_1", "run_2", "run_3"]), st.just(STARTED)),
)


@dataclass(slots=True)
class Story:
    """A task and its event stream, one command after the other."""

    state: TaskRecord | None = None
    events: list[Event] = field(default_factory=list[Event])

    def tell(self, command: TaskCommand) -> list[Fact]:
        """Decides, folds and keeps; refused commands raise and change nothing."""
        facts = tasks.decide(self.state, command)
        for fact in facts:
            sequence = len(self.events) + 1
            event = Event(f"ev_{sequence}", format_ms(sequence * 1000), "rt_1", fact, sequence)
            self.events.append(event)
            self.state = evolve(self.state, event)
        return facts

    def find_refusal(self, command: TaskCommand) -> CallerError | None:
        """Applies the command; returns the reason of a refusal, or None."""
        try:
            self.tell(command)
        except CallerError as error:
            return error
        return None

    def try_to(self, command: TaskCommand) -> bool:
        """Whether the command was accepted."""
        return self.find_refusal(command) is None


def make_story(*commands: TaskCommand) -> Story:
    """A task that was created, with ``commands`` applied."""
    story = Story()
    story.tell(BeginTask(SCOPE, CREATED))
    for command in commands:
        story.tell(command)
    return story
