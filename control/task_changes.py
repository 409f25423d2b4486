"""Applies a command to a caller's task: find, compare the version, decide, append, notify the driver.

The driver of the task's run reads what was written, and acts on it: a command is binding. Pure functions decide the
commands that steer a task: its description, its progress, a pause and a resume.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final, TypeAlias, assert_never

import orjson

from passerelle.core.agent_name import ROUTER
from passerelle.core.batch import DueChange, EntityRef
from passerelle.core.errors import InvalidInput, NotFound, VersionMismatch
from passerelle.core.frozen import frozen
from passerelle.core.ids import TaskId, expose
from passerelle.core.payloads.task import TaskDependencyUpdated, TaskProgress
from passerelle.core.read_models.task import show_record
from passerelle.core.routing.profile import read_profile
from passerelle.core.session.thread import ThreadRecord
from passerelle.core.task import commands as tell
from passerelle.core.task import machine as tasks
from passerelle.core.task.constraints import read_constraints
from passerelle.core.task.record import TaskRecord
from passerelle.core.task.requests import AppendTaskProgress, PauseTask, ResumeTask, TaskChanged
from passerelle.core.task.status import Status
from passerelle.core.wire.codec import to_wire
from passerelle.delegation.runs.failure import name_row
from passerelle.delegation.runs.holds import QUEUED
from passerelle.runtime.records.idempotency import make_once
from passerelle.runtime.records.ownership import find_own
from passerelle.runtime.records.writes import AppendOptions

if TYPE_CHECKING:
    from collections.abc import Callable

    from passerelle.core.decision import Decision, Held
    from passerelle.core.events import Fact
    from passerelle.core.peer import Peer
    from passerelle.core.principal import Principal
    from passerelle.core.task.requests import CreateTask, LinkTasks, UnlinkTasks, UpdateTask
    from passerelle.core.wire.json import Json, JsonObject
    from passerelle.delegation.runs.dispatch import Dispatch
    from passerelle.delegation.runs.plan import Conditions
    from passerelle.runtime.records.ownership import Ownership
    from passerelle.runtime.records.writes import Writes

    Steering: TypeAlias = AppendTaskProgress | PauseTask | ResumeTask
    Change: TypeAlias = UpdateTask | Steering | LinkTasks | UnlinkTasks

    Decide: TypeAlias = Callable[[TaskRecord], list[Fact]]

_FOLLOW_UP_MS: Final = 1_000
"""Delay of the follow-up row: the appending instance continues at once; the row covers its crash."""


@frozen
class TaskChanges:
    """Applies commands to single tasks."""

    writes: Writes
    ownership: Ownership
    dispatch: Dispatch

    async def change(
        self,
        principal: Principal,
        command: Change,
        idem: str | None,
        decide: Decide,
        owed: str | None = None,
    ) -> TaskChanged:
        """Appends the facts of ``decide`` for the current task, and ``owed``, a due row for a follow-up.

        Raises:
            NotFound: no such task of the caller, nor, for a pause or resume, one that it operates.
            VersionMismatch: the caller read an older version.
            IdempotencyConflict: the key was used for another request.
        """
        is_operated = isinstance(command, PauseTask | ResumeTask)
        find = self.ownership.find_operated if is_operated else self.ownership.find
        owned = await find(principal, command.task_id, None, hidden=True)
        once = make_once(principal, command, idem)
        if await once.find(self.writes.log, owned.ref.shard) is not None:
            return render_steered(principal, owned.held, repeated=True)

        def body(decision: Decision) -> AppendOptions:
            record = read_task(decision, owned.ref, command.version)
            decision.add(decide(record))
            idem_row = once.remember(owned.ref.id)
            if decision.changes_nothing and idem_row is None:
                return AppendOptions()  # its follow-up row was set when it was written
            due = make_attempt_rows(decision, owned.ref, record)
            if owed is not None:
                due = (*due, DueChange(owed, decision.now_ms + _FOLLOW_UP_MS))
            look = _make_queue_check(decision, owned.ref)
            if record.queued is not None and look not in due:
                due = (*due, look)  # its place in the queue may have changed
            return AppendOptions(idem=idem_row, due=due)

        written = await self.writes.change(owned.record.session_id, [owned.ref], body)
        await self.notify_driver(owned.ref)
        repeated = written.repeated is not None
        return render_steered(principal, written.held[owned.ref], repeated=repeated)

    async def notify_driver(self, task: EntityRef) -> None:
        """Makes the driver of a task read it again, if it is driven here."""
        await self.dispatch.refresh(task.id)
        self.dispatch.wake(task.id)


def make_attempt_rows(
    decision: Decision, task: EntityRef, before: TaskRecord
) -> tuple[DueChange, ...]:
    """The due row of an attempt that was held back before it began, once the task resumes (I9)."""
    after = decision.state(task)
    if not isinstance(after, TaskRecord) or after.status is before.status:
        return ()
    if after.status is Status.RETRYING:
        return (DueChange(name_row(task.id), decision.now_ms),)
    if after.status in {Status.QUEUED, Status.WAITING_RESOURCE} and after.queued is not None:
        # Its turn may have passed while it was held back.
        return (_make_queue_check(decision, task),)
    return ()


def _make_queue_check(decision: Decision, task: EntityRef) -> DueChange:
    return DueChange(f"{QUEUED}:{task.id}", decision.now_ms)


def read_task(decision: Decision, task: EntityRef, version: int | None) -> TaskRecord:
    """The task in a decision, if it has the version that the caller read.

    Raises:
        VersionMismatch: it has another one.
        NotFound: it does not exist.
    """
    check_version(version, decision.version(task))
    record = decision.state(task)
    if not isinstance(record, TaskRecord):
        raise NotFound("task", task.id)
    return record


def check_version(read: int | None, stored: int) -> None:
    """Raises VersionMismatch if the caller names another version than the stored one."""
    if read is not None and read != stored:
        raise VersionMismatch(read, stored)


@frozen
class TaskUpdates:
    """Commands that change a task's description, or steer it."""

    changes: TaskChanges
    find_peer: Callable[[str], Peer]
    conditions: Conditions

    async def update(
        self, principal: Principal, command: UpdateTask, idem: str | None
    ) -> TaskChanged:
        """Changes the description, the agent, or the conditions of a task (CMD-15).

        Raises:
            NotFound: no such task, or no such agent, of the caller.
            InvalidInput: a condition, a constraint or the profile of a routed task is invalid.
        """
        check_content(command)
        if command.assignee is not None:
            if not principal.may_call(command.assignee):
                raise NotFound("agent", command.assignee)
            self.find_peer(command.assignee)

        def decide(record: TaskRecord) -> list[Fact]:
            if record.kind == ROUTER and command.profile:
                read_profile(command.profile, "profile")
            if command.acceptance is None:
                return decide_update(record, command)
            conditions = self.conditions.read_command(record.kind, command.acceptance)
            return decide_update(record, replace(command, acceptance=conditions))

        return await self.changes.change(principal, command, idem, decide)

    async def steer(self, principal: Principal, command: Steering, idem: str | None) -> TaskChanged:
        """Applies progress, a pause, or a resume.

        Raises:
            NotFound: no such task, or no such thread, of the caller.
            InvalidInput: the thread belongs to another session.
        """
        if isinstance(command, ResumeTask) and command.thread_id is not None:
            await self._check_thread(principal, command.task_id, command.thread_id)
        return await self.changes.change(
            principal, command, idem, lambda record: decide_steering(record, command, principal.id)
        )

    async def _check_thread(self, principal: Principal, task_id: str, thread_id: str) -> None:
        owned = await self.changes.ownership.find(principal, task_id, None, hidden=True)
        thread = await find_own(self.changes.writes, ThreadRecord, principal, thread_id)
        if thread.session_id != owned.record.session_id:
            raise InvalidInput("threadId", "the thread belongs to another session")


def render_change(held: Held, *, repeated: bool = False) -> TaskChanged:
    """The answer to a caller that changed its task."""
    task = to_wire(show_record(held.record)) if isinstance(held.record, TaskRecord) else {}
    return TaskChanged(task, held.stamp.version, repeated)


def render_steered(principal: Principal, held: Held, *, repeated: bool = False) -> TaskChanged:
    """The same; for another owner's task that the caller operates only its id and status."""
    record = held.record
    if not isinstance(record, TaskRecord) or record.owner == principal.key:
        return render_change(held, repeated=repeated)
    view: JsonObject = {
        "taskId": expose(TaskId(record.task_id), record.exposure),
        "status": record.status.value,
    }
    return TaskChanged(view, held.stamp.version, repeated)


CONTENT_BYTES: Final = 8_192
"""A record is read and written whole with every frame of the agent, so its description must be small."""
_WORDS: Final = ("title", "objective", "priority", "assignee")
_CONTENT: Final = ("constraints", "profile", "acceptance", "metadata")


def check_content(command: CreateTask | UpdateTask) -> None:
    """Raises InvalidInput for a free-content member that is too large, and for an invalid constraint."""
    for name in _CONTENT:
        given = getattr(command, name)
        if given is not None and len(orjson.dumps(given)) > CONTENT_BYTES:
            raise InvalidInput(name, f"is larger than {CONTENT_BYTES} bytes")
    if command.constraints is not None:
        read_constraints(command.constraints)


def decide_update(record: TaskRecord, command: UpdateTask) -> list[Fact]:
    """``task.updated`` with the differences, or nothing if there are none.

    Raises:
        UnsupportedOperation: the task has ended (LT-12).
    """
    changed: dict[str, JsonObject] = {}
    for name in (*_WORDS, *_CONTENT):
        new = getattr(command, name)
        old = getattr(record, name)
        if new is not None and new != old:
            changed[name] = {"old": _as_json(old), "new": _as_json(new)}
    facts = tasks.decide(record, tell.DescribeTask(changed))
    return facts if changed else []


def _as_json(value: Json | tuple[Json, ...]) -> Json:
    return [*value] if isinstance(value, tuple) else value


def decide_steering(record: TaskRecord, command: Steering, actor: str) -> list[Fact]:
    """``task.progress``, ``task.paused``, or ``task.resumed`` with the previous status; one per command.

    Raises:
        UnsupportedOperation: the status does not allow it.
        InvalidInput: empty progress, or a delivery without its consumer.
    """
    match command:
        case AppendTaskProgress():
            return tasks.decide(record, tell.ReportProgress(_compose_progress(command)))
        case PauseTask(reason=reason):
            return tasks.decide(record, tell.SuspendTask(actor, reason))
        case ResumeTask(reason=reason, thread_id=thread_id):
            resumed = tasks.decide(record, tell.ContinueTask(reason or f"resumed by {actor}"))
            return [*resumed, *_assign(record, thread_id, f"resumed by {actor} on {thread_id}")]
        case _:
            assert_never(command)


def _assign(record: TaskRecord, thread_id: str | None, reason: str) -> list[Fact]:
    """Assigns another thread to run a task: the edge to the previous one is removed, and stays readable (GR-6)."""
    before = record.assigned_thread
    kind: Final = "assigned_thread"
    if thread_id is None or thread_id == before:
        return []
    edges: list[TaskDependencyUpdated] = []
    if before is not None:
        name = f"{kind}:{before}"
        edges.append(TaskDependencyUpdated(name, kind, before, "removed", "open", reason))
    name = f"{kind}:{thread_id}"
    edges.append(TaskDependencyUpdated(name, kind, thread_id, "open", reason=reason))
    return [fact for edge in edges for fact in tasks.decide(record, tell.LinkTask(edge))]


def _compose_progress(command: AppendTaskProgress) -> TaskProgress:
    if (command.delivery is None) != (command.consumer is None):
        name = "delivery" if command.delivery is None else "consumer"
        raise InvalidInput(name, "consumer and delivery go together")
    progress = TaskProgress(
        phase=command.phase,
        percent=command.percent,
        step=command.step,
        summary=command.summary,
        counters=command.counters,
        checklist=command.checklist,
        outputs=command.outputs,
        consumer=command.consumer,
        delivery=command.delivery,
    )
    if progress == TaskProgress():
        raise InvalidInput("progress", "says nothing")
    return progress
