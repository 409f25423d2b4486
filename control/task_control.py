"""Every command to tasks, sessions and turns, each to the part that carries it out."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, assert_never

from passerelle.control.task_changes import check_content, decide_steering, decide_update
from passerelle.core.errors import NotFound
from passerelle.core.session.requests import (
    DescribeSession,
    InterruptTurn,
    OpenSession,
    ResumeThread,
)
from passerelle.core.task.requests import (
    AppendTaskProgress,
    CompleteTask,
    CreateTask,
    FailTask,
    GiveTask,
    LinkTasks,
    PauseTask,
    ResumeTask,
    RetryTask,
    StartTask,
    UnlinkTasks,
    UpdateTask,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from passerelle.control.closure import Finishing
    from passerelle.control.creation import Creating
    from passerelle.control.edges import Linking
    from passerelle.control.interruption import Interrupting
    from passerelle.control.rerun import Rerunning
    from passerelle.control.sessions import Sessions
    from passerelle.control.start import Starting
    from passerelle.control.task_changes import TaskChanges
    from passerelle.control.transfer import Giving
    from passerelle.core.events import Fact
    from passerelle.core.peer import Peer
    from passerelle.core.principal import Principal
    from passerelle.core.session.requests import (
        SessionChanged,
        SessionRequest,
        ThreadResumed,
        TurnInterrupted,
    )
    from passerelle.core.task.record import TaskRecord
    from passerelle.core.task.requests import TaskChanged, TaskGiven, TaskRequest
    from passerelle.delegation.runs.plan import Conditions


@dataclass(frozen=True, slots=True)
class TaskControl:
    """The control plane over tasks."""

    changes: TaskChanges
    creating: Creating
    starting: Starting
    finishing: Finishing
    rerunning: Rerunning
    linking: Linking
    giving: Giving
    find_peer: Callable[[str], Peer]
    conditions: Conditions

    async def execute(
        self, principal: Principal, command: TaskRequest, idem: str | None
    ) -> TaskChanged | TaskGiven:
        """Carries out one command, once per idempotency key and principal (CMD-30)."""
        match command:
            case CreateTask():
                return await self.creating.create(principal, command, idem)
            case StartTask():
                return await self.starting.start(principal, command, idem)
            case UpdateTask():
                return await self._update(principal, command, idem)
            case GiveTask():
                return await self.giving.give(principal, command, idem)
            case AppendTaskProgress() | PauseTask() | ResumeTask():
                return await self.changes.change(
                    principal,
                    command,
                    idem,
                    lambda record: decide_steering(record, command, principal.id),
                )
            case CompleteTask():
                return await self.finishing.complete(principal, command, idem)
            case FailTask():
                return await self.finishing.fail(principal, command, idem)
            case RetryTask():
                return await self.rerunning.rerun(principal, command, idem)
            case LinkTasks() | UnlinkTasks():
                return await self._relate(principal, command, idem)
            case _:
                assert_never(command)

    async def _relate(
        self, principal: Principal, command: LinkTasks | UnlinkTasks, idem: str | None
    ) -> TaskChanged:
        if isinstance(command, LinkTasks):
            return await self.linking.link(principal, command, idem)
        return await self.linking.unlink(principal, command, idem)

    async def _update(
        self, principal: Principal, command: UpdateTask, idem: str | None
    ) -> TaskChanged:
        check_content(command)
        if command.assignee is not None:
            if not principal.may_call(command.assignee):
                raise NotFound("agent", command.assignee)
            self.find_peer(command.assignee)

        def decide(record: TaskRecord) -> list[Fact]:
            if command.acceptance is None:
                return decide_update(record, command)
            conditions = self.conditions.read_command(record.kind, command.acceptance)
            return decide_update(record, replace(command, acceptance=conditions))

        return await self.changes.change(principal, command, idem, decide)


@dataclass(frozen=True, slots=True)
class SessionControl:
    """The control plane over sessions."""

    sessions: Sessions
    interrupting: Interrupting

    async def execute(
        self, principal: Principal, command: SessionRequest, idem: str | None
    ) -> SessionChanged | TurnInterrupted | ThreadResumed:
        """Carries out one command, once per idempotency key and principal (CMD-30)."""
        match command:
            case OpenSession():
                return await self.sessions.open(principal, command, idem)
            case DescribeSession():
                return await self.sessions.describe(principal, command, idem)
            case InterruptTurn():
                return await self.interrupting.interrupt(principal, command)
            case ResumeThread():
                return await self.interrupting.resume(principal, command)
            case _:
                assert_never(command)
