"""The task machine: every status, every command, and the transitions.

A task is a durable promise. Its life, in short: *accepted* once it has an identity; *queued* or *preparing* before the
work; *running* from the first attempt on; *waiting* for a person, a permission or a resource; *cancelling* from the
request to stop until the stop is confirmed; and one of four ends: *completed*, *failed*, *cancelled*, *timed_out*. Four
statuses state that something is not known or not possible: *lost* (whether the worker lives is unknown), *unknown* (the
agent sent an unknown state), *stale* (the record may be outdated) and *blocked* (a named party must act first).

Three rules hold everywhere. A terminal task is frozen: only archiving and an explicit retry change its status (LT-12).
COMPLETED from an agent does not complete the task: the run ends, the artifacts are stored, the delivery is recorded,
and only then the task may complete (I5); ``decide`` refuses an earlier ``SucceedTask`` and names the missing fact. A
request to cancel is final: no state of the agent leads from *cancelling* back to work (CMD-9).

``TABLE`` lists all transitions: for a command, the statuses it is allowed in and those it may lead to. A pair that is
not in the table is refused with a typed error. ``decide`` turns a command into facts. ``evolve``
(``core/task/fold.py``) folds facts into the record and never raises: an unreadable event marks the record as stale.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, TypeAlias, assert_never

from passerelle.core.errors import InvalidInput, NotFound, UnsupportedOperation
from passerelle.core.events import Fact
from passerelle.core.facts import Scope
from passerelle.core.payloads import task as task_facts
from passerelle.core.payloads.run import RunStatus, request
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
from passerelle.core.task.completion import find_missing
from passerelle.core.task.guards import (
    refuse_second_run,
    require_fresh,
    require_line,
    require_run,
    require_unblocked,
)
from passerelle.core.task.record import CHUNKS, WITHHELD
from passerelle.core.task.refusals import refuse
from passerelle.core.task.status import HELD, TERMINAL, Phase, Status
from passerelle.core.wire.record import change
from passerelle.core.wire.trace import SPAN_ID, TRACE_ID

if TYPE_CHECKING:
    from collections.abc import Iterable

    from passerelle.core.task.record import TaskRecord


_S: Final = Status
_BEFORE: Final = frozenset({_S.ACCEPTED, _S.QUEUED, _S.PREPARING})
_ACTIVE: Final = frozenset({_S.QUEUED, _S.PREPARING, _S.RUNNING, _S.UNKNOWN, _S.LOST, _S.STALE})
_PARKED: Final = frozenset({_S.WAITING_INPUT, _S.WAITING_PERMISSION, _S.WAITING_RESOURCE})
_HELD: Final = HELD
_LIVE: Final = _BEFORE | _ACTIVE | _PARKED | _HELD | {_S.RETRYING, _S.CANCELLING}

Targets: TypeAlias = "frozenset[Status]"
SAME: Final[Targets] = frozenset()
"""The command leaves the status unchanged."""


def _to(*targets: Status) -> Targets:
    return frozenset(targets)


def _rows(sources: Iterable[Status], targets: Targets) -> dict[Status | None, Targets]:
    return dict.fromkeys(sources, targets)


TABLE: Final[dict[type[TaskCommand], dict[Status | None, Targets]]] = {
    BeginTask: {None: _to(_S.DRAFT, _S.ACCEPTED)},
    AcceptTask: _rows({_S.DRAFT}, _to(_S.ACCEPTED)),
    QueueTask: {
        **_rows(_BEFORE | {_S.RETRYING}, _to(_S.QUEUED, _S.WAITING_RESOURCE)),
        # An attempt that waits for a quota: the reset time changed, or it now waits for its agent.
        **_rows({_S.WAITING_RESOURCE}, _to(_S.QUEUED, _S.WAITING_RESOURCE)),
    },
    PrepareTask: _rows({_S.ACCEPTED, _S.QUEUED, _S.PREPARING}, _to(_S.PREPARING)),
    PutBack: _rows({_S.PREPARING}, _to(_S.ACCEPTED)),
    StartRun: _rows(_BEFORE | {_S.RETRYING, _S.WAITING_RESOURCE}, _to(_S.RUNNING)),
    SendInput: _rows(_ACTIVE | _PARKED, SAME),
    ObserveStatus: {
        **_rows(_ACTIVE | _PARKED, _to(_S.QUEUED, _S.RUNNING, _S.UNKNOWN)),
        **_rows({_S.BLOCKED, _S.PAUSED, _S.CANCELLING}, SAME),
    },
    ObserveOutput: {
        **_rows(_ACTIVE, _to(_S.RUNNING)),
        **_rows(_PARKED | _HELD | {_S.CANCELLING}, SAME),
    },
    ObserveArtifact: _rows(_ACTIVE | _PARKED | _HELD | {_S.CANCELLING}, SAME),
    WaitFor: _rows(_BEFORE | _ACTIVE | _PARKED, _PARKED),
    EndWait: _rows(_PARKED, _to(_S.RUNNING)),
    BlockTask: _rows(_BEFORE | _ACTIVE | _PARKED | {_S.RETRYING, _S.BLOCKED}, _to(_S.BLOCKED)),
    SuspendTask: _rows(_BEFORE | _ACTIVE | _PARKED | {_S.RETRYING, _S.BLOCKED}, _to(_S.PAUSED)),
    ContinueTask: {
        **_rows({_S.PAUSED}, _BEFORE | _PARKED | {_S.RUNNING, _S.RETRYING, _S.BLOCKED}),
        **_rows({_S.BLOCKED}, _BEFORE | _PARKED | {_S.RUNNING, _S.RETRYING}),
        **_rows({_S.LOST, _S.UNKNOWN, _S.STALE}, _to(_S.RUNNING)),
    },
    WithholdEnd: _rows(_ACTIVE | _PARKED, SAME),
    EndRun: _rows(_ACTIVE | _PARKED | _HELD | {_S.CANCELLING}, SAME),
    FailRun: _rows(_ACTIVE | _PARKED | _HELD | {_S.CANCELLING}, SAME),
    RecordDelivery: _rows(_LIVE, SAME),
    ReportProgress: _rows(_LIVE, SAME),
    Cover: _rows(_LIVE, SAME),
    SucceedTask: _rows(_ACTIVE | _PARKED, _to(_S.COMPLETED)),
    EndInError: _rows(_LIVE | {_S.DRAFT}, _to(_S.FAILED)),
    PrepareRetry: _rows((_LIVE | TERMINAL) - {_S.CANCELLING}, _to(_S.RETRYING)),
    LoseTask: _rows(_ACTIVE | _PARKED | {_S.CANCELLING}, _to(_S.LOST)),
    RequestCancel: {
        **_rows(_LIVE | {_S.DRAFT}, _to(_S.CANCELLING)),
    },
    ConfirmCancel: _rows(_LIVE | {_S.DRAFT}, _to(_S.CANCELLED)),
    TimeOutTask: _rows(_LIVE - {_S.CANCELLING}, _to(_S.TIMED_OUT)),
    DescribeTask: _rows(_LIVE | {_S.DRAFT}, SAME),
    LinkTask: _rows(_LIVE | TERMINAL | {_S.DRAFT}, SAME),
    ArchiveTask: _rows(TERMINAL, _to(_S.ARCHIVED)),
    LeaveBehind: _rows(TERMINAL, SAME),
}


def decide(state: TaskRecord | None, command: TaskCommand) -> list[Fact]:
    """The facts of a command; the row of ``TABLE`` lists where they may lead.

    Raises:
        InvalidInput: the task exists already.
        NotFound: the task does not exist.
        NotCancelable, UnsupportedOperation: the status does not allow it, or a fact is missing (I5).
    """
    if isinstance(command, BeginTask):
        if state is not None:
            raise InvalidInput("taskId", "the task exists")
        return _create(command)
    if state is None:
        raise NotFound("task", "")
    if state.status not in TABLE[type(command)]:
        raise refuse(state.status, type(command))
    return _decide(state, command)


def scope_of(state: TaskRecord, step_id: str | None = None) -> Scope:
    """The ids of the task, of its live run, and of the trace of its last run."""
    parent = state.attempts[-1].traceparent if state.attempts else None
    return Scope(
        session_id=state.session_id,
        thread_id=state.thread_id,
        turn_id=state.turn_id,
        task_id=state.task_id,
        run_id=state.current_run_id,
        step_id=step_id,
        trace_id=parent[TRACE_ID] if parent else None,
        span_id=parent[SPAN_ID] if parent else None,
    )


def _create(command: BeginTask) -> list[Fact]:
    facts = [Fact(command.scope, command.created)]
    if command.accepts:
        facts.append(Fact(command.scope, task_facts.TaskAccepted()))
    return facts


def _decide(state: TaskRecord, command: TaskCommand) -> list[Fact]:
    match command:
        case ObserveStatus() | ObserveOutput() | ObserveArtifact() | WaitFor() | EndWait():
            return _observe(state, command)
        case StartRun() | SendInput() | WithholdEnd() | EndRun() | FailRun():
            return _drive(state, command)
        case RecordDelivery() | Cover() | SucceedTask():
            return _reconcile(state, command)
        case (
            EndInError()
            | PrepareRetry()
            | LoseTask()
            | RequestCancel()
            | ConfirmCancel()
            | TimeOutTask()
            | ArchiveTask()
        ):
            return _end(state, command)
        case BeginTask():
            raise InvalidInput("taskId", "the task exists")
        case (
            AcceptTask()
            | QueueTask()
            | PrepareTask()
            | PutBack()
            | BlockTask()
            | SuspendTask()
            | ContinueTask()
        ):
            return _steer(state, command)
        case ReportProgress() | DescribeTask() | LinkTask() | LeaveBehind():
            return _describe(state, command)
        case _:
            assert_never(command)


def _observe(
    state: TaskRecord,
    command: ObserveStatus | ObserveOutput | ObserveArtifact | WaitFor | EndWait,
) -> list[Fact]:
    if isinstance(command, ObserveStatus | ObserveOutput):
        require_run(state)
    match command:
        case ObserveStatus(status=status, said=said, step_id=step_id):
            scope = scope_of(state, step_id)
            facts = [Fact(scope, said)] if _is_new_status(state, said) else []
            move = _move(state, status, said)
            return facts + ([Fact(scope, move)] if move else [])
        case ObserveOutput(summary=summary, step_id=step_id, chunks=chunks):
            works = state.status in _ACTIVE and state.status is not _S.RUNNING
            progress = task_facts.TaskProgress(
                phase=Phase.WORKING,
                status=_S.RUNNING if works else None,
                summary=summary,
                counters={CHUNKS: chunks},
            )
            return [Fact(scope_of(state, step_id), progress)]
        case ObserveArtifact(artifact=artifact, step_id=step_id, refs=refs):
            if not state.attempts:
                raise UnsupportedOperation("the task has no run", status=state.status)
            # An artifact may be stored after its run has ended: completion waits for it.
            return [Fact(_ended_scope(state, step_id), artifact, refs)]
        case WaitFor(waiting=waiting, step_id=step_id):
            if waiting.status not in _PARKED:
                raise InvalidInput("status", f"{waiting.status} is not a waiting status")
            return [Fact(scope_of(state, step_id), waiting)]
        case EndWait(reason=reason):
            return [Fact(scope_of(state), task_facts.TaskResumed(reason))]
        case _:
            assert_never(command)


def _is_new_status(state: TaskRecord, said: RunStatus) -> bool:
    """Whether a status message differs from the last one."""
    run = state.run
    if run is None or said.text is not None or said.remote_task_id or said.delivery_mechanism:
        return True
    if said.title is not None or said.detail is not None or said.checkpoints is not None:
        return True
    return said.native_status != run.native_status


def _move(state: TaskRecord, status: Status, said: RunStatus) -> task_facts.TaskPayload | None:
    native = said.native_status
    if status is state.status or TABLE[ObserveStatus][state.status] is SAME:
        return None
    if status is _S.QUEUED:
        return task_facts.TaskQueued(queue=f"peer:{state.peer}", reason="submitted at the peer")
    if status is _S.RUNNING and (state.status in _PARKED or state.status is _S.LOST):
        return task_facts.TaskResumed("the peer continues", native_status=native)
    if status in {_S.RUNNING, _S.UNKNOWN}:
        phase = (said.phase or Phase.WORKING) if status is _S.RUNNING else None
        return task_facts.TaskProgress(phase=phase, status=status, native_status=native)
    raise InvalidInput("status", f"an agent cannot put a task into {status}")


def _drive(
    state: TaskRecord, command: StartRun | SendInput | WithholdEnd | EndRun | FailRun
) -> list[Fact]:
    scope = scope_of(state)
    match command:
        case StartRun(run_id=run_id, started=started, refs=refs, thread_id=thread_id):
            require_unblocked(state)
            require_line(state)
            refuse_second_run(state)
            scope = change(scope, run_id=run_id)
            begun = scope if thread_id is None else change(scope, thread_id=thread_id)
            facts = [Fact(begun, started, refs)]
            if not started.gated:
                peer, way = started.worker.peer, started.delivery_mechanism
                facts.append(Fact(scope, request(peer, way, started.message_id)))
            return facts if state.started_at else [*facts, Fact(scope, task_facts.TaskStarted())]
        case SendInput(requested=requested):
            require_run(state)
            return [Fact(scope, requested)]
        case WithholdEnd(said=said, step_id=step_id, frame=frame):
            require_run(state)
            return [Fact(scope_of(state, step_id), said, {WITHHELD: frame})]
        case EndRun(native_status=native, summary=summary, text=text, step_id=step_id):
            require_run(state)
            verifying = text or RunStatus(native_status=native, phase=Phase.VERIFYING)
            return [
                Fact(scope_of(state, step_id), verifying),
                Fact(scope, task_facts.TaskAttemptCompleted(native, summary)),
            ]
        case FailRun(status=status, error=error, native_status=native):
            require_run(state)
            return [Fact(scope, task_facts.TaskAttemptFailed(status, error, native))]
        case _:
            assert_never(command)


def _reconcile(state: TaskRecord, command: RecordDelivery | Cover | SucceedTask) -> list[Fact]:
    match command:
        case RecordDelivery(consumer=consumer, delivery=delivery):
            progress = task_facts.TaskProgress(
                phase=Phase.DELIVERING, consumer=consumer, delivery=delivery
            )
            return [Fact(scope_of(state), progress)]
        case Cover(coverage=coverage):
            if coverage == state.coverage:
                return []
            return [Fact(scope_of(state), task_facts.TaskProgress(coverage=coverage))]
        case SucceedTask(answer=answer, refs=refs):
            missing = find_missing(state)
            if missing:
                raise UnsupportedOperation(
                    f"the task cannot complete yet: {missing}", missing=missing
                )
            return [Fact(_ended_scope(state), answer, refs)]
        case _:
            assert_never(command)


def _ended_scope(state: TaskRecord, step_id: str | None = None) -> Scope:
    """The ids of the task and of its last run, live or not."""
    run_id = state.attempts[-1].run_id if state.attempts else None
    return change(scope_of(state, step_id), run_id=run_id)


def _end(
    state: TaskRecord,
    command: EndInError
    | PrepareRetry
    | LoseTask
    | RequestCancel
    | ConfirmCancel
    | TimeOutTask
    | ArchiveTask,
) -> list[Fact]:
    scope = _ended_scope(state)
    match command:
        case EndInError(error=error, rejected=rejected):
            return [Fact(scope, task_facts.TaskFailed(error, rejected))]
        case PrepareRetry(retrying=retrying):
            require_fresh(state, retrying)
            return [Fact(scope, retrying)]
        case LoseTask(last_proof=last_proof, reason=reason):
            return [Fact(scope, task_facts.TaskLost(last_proof, reason))]
        case RequestCancel(requested=requested):
            repeated = state.status is _S.CANCELLING
            return [] if repeated else [Fact(scope, requested)]
        case ConfirmCancel(cancelled=cancelled):
            return [Fact(scope, cancelled)]
        case TimeOutTask(timed_out=timed_out):
            return [Fact(scope, timed_out)]
        case ArchiveTask(archive=archive):
            return [Fact(scope, task_facts.TaskArchived(archive))]
        case _:
            assert_never(command)


def _steer(
    state: TaskRecord,
    command: AcceptTask
    | QueueTask
    | PrepareTask
    | PutBack
    | BlockTask
    | SuspendTask
    | ContinueTask,
) -> list[Fact]:
    scope = scope_of(state)
    match command:
        case AcceptTask():
            return [Fact(scope, task_facts.TaskAccepted())]
        case QueueTask():
            return _queue(state, command)
        case PrepareTask(step=step):
            refuse_second_run(state)
            progress = task_facts.TaskProgress(phase=Phase.PLANNING, status=_S.PREPARING, step=step)
            return [Fact(scope, progress)]
        case PutBack(reason=reason):
            return [Fact(scope, task_facts.TaskProgress(status=_S.ACCEPTED, summary=reason))]
        case BlockTask(blocked=blocked):
            return [Fact(scope, blocked)]
        case SuspendTask(actor=actor, reason=reason):
            return [Fact(scope, task_facts.TaskPaused(actor, reason))]
        case ContinueTask(reason=reason):
            blocker = state.blocker if state.status in _HELD else None
            if blocker is None:
                return [
                    Fact(scope, task_facts.TaskResumed(reason, status=_find_resumed_status(state)))
                ]
            if state.status is _S.BLOCKED:
                require_unblocked(state)
            return [Fact(scope, describe_blocker(blocker.target, blocker.reason))]
        case _:
            assert_never(command)


def _queue(state: TaskRecord, command: QueueTask) -> list[Fact]:
    """The facts of queueing; a wait for a quota is a wait for a resource (ST-8)."""
    require_line(state)
    if command.attempt is not None:
        refuse_second_run(state)
    scope = scope_of(state)
    queued = task_facts.TaskQueued(
        command.queue,
        command.reason,
        command.position,
        command.cause,
        command.attempt,
        command.send_options,
        command.promoted_ms,
        command.until,
        command.unpaid,
    )
    if command.cause != "quota":
        return [Fact(scope, queued)]
    waiting = task_facts.TaskWaiting(
        "resource", _S.WAITING_RESOURCE, command.reason, resource="quota"
    )
    return [Fact(scope, queued), Fact(scope, waiting)]


def _describe(
    state: TaskRecord, command: ReportProgress | DescribeTask | LinkTask | LeaveBehind
) -> list[Fact]:
    scope = scope_of(state)
    match command:
        case ReportProgress(progress=progress):
            if progress.status is not None:
                raise InvalidInput("status", "progress cannot change the status")
            return [Fact(scope, progress)]
        case DescribeTask(changed=changed):
            return [Fact(scope, task_facts.TaskUpdated(changed))]
        case LinkTask(edge=edge):
            return [Fact(scope, edge)]
        case LeaveBehind(boundary_id=boundary_id):
            known = state.rolled_back is not None
            return [] if known else [Fact(scope, task_facts.TaskUpdated({}, boundary_id))]
        case _:
            assert_never(command)


def describe_blocker(task_id: str, reason: str | None) -> task_facts.TaskBlocked:
    """The fact of a task that waits for another one."""
    return task_facts.TaskBlocked(task_id, "dependency", reason or f"waits for task {task_id}")


def _find_resumed_status(state: TaskRecord) -> Status | None:
    """The status before a hold, unless its wait has ended meanwhile; None: running."""
    before = state.held_from
    if state.status not in _HELD or before is None:
        return None
    if before in _PARKED:
        return before if state.open_actions or state.queued is not None else None
    if state.run is not None:
        return None
    return before if before in _BEFORE | {_S.RETRYING} else _S.ACCEPTED
