"""Spawns, steers and closes subagents: contexts that agents have for tasks of the caller (CMD-19).

A spawned subagent is a task of its own, in a context of its own, below the task that it is for: everything that applies
to tasks applies to it, and each step is a task command, subject to policy like any other. Changes of the context itself
are facts: that it was spawned, with the edge of its parent, and that it was closed.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Final

from passerelle.core.batch import EntityKind, EntityRef
from passerelle.core.commands import CancelTask, SubmitTurn
from passerelle.core.errors import (
    GraphLimit,
    IdempotencyConflict,
    NotCancelable,
    NotFound,
    UnsupportedOperation,
)
from passerelle.core.facts import Scope
from passerelle.core.frozen import frozen
from passerelle.core.payloads.subagent import SubagentClosed
from passerelle.core.payloads.task import TaskDependencyUpdated
from passerelle.core.session import thread as threads
from passerelle.core.session.thread import CloseContext, ThreadRecord
from passerelle.core.subagent.name import SubagentName
from passerelle.core.subagent.requests import SubagentChanged
from passerelle.core.task import machine as tasks
from passerelle.core.task.commands import LinkTask
from passerelle.core.task.record import TaskRecord
from passerelle.core.task.requests import CreateTask, LinkTasks, ResumeTask, StartTask
from passerelle.core.task.status import ENDED, Status, Visibility
from passerelle.core.wire.codec import from_bytes, to_wire
from passerelle.runtime.common.calls import require_sending
from passerelle.runtime.records.idempotency import TurnReceipt
from passerelle.runtime.records.message_summary import digest_request
from passerelle.runtime.records.places import hash_key
from passerelle.runtime.records.writes import AppendOptions

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from passerelle.control.creation import Creating
    from passerelle.control.interruption import Interrupting
    from passerelle.control.start import Starting
    from passerelle.control.subagents import Family, SubagentReads
    from passerelle.core.commands import OtherCommand, Result, TurnAccepted
    from passerelle.core.decision import Decision
    from passerelle.core.events import Fact
    from passerelle.core.peer import Peer
    from passerelle.core.principal import Principal
    from passerelle.core.read_models.subagents import Subagent
    from passerelle.core.subagent.requests import (
        CloseSubagent,
        ResumeSubagent,
        SendSubagentInput,
        SpawnSubagent,
    )
    from passerelle.core.wire.json import JsonObject
    from passerelle.runtime.records.ownership import Ownership

_TRIES: Final = 3
"""How often a close checks for work that began while it was stored."""
_UNSENT: Final = frozenset({Status.DRAFT, Status.ACCEPTED})
_STOPPED: Final = frozenset({Status.PAUSED, Status.LOST, Status.UNKNOWN, Status.STALE})
_CLOSED: Final = "the context is closed"


@frozen
class Subagents:
    """Works on subagents. ``execute`` and ``submit`` run commands and messages with all policy checks."""

    reads: SubagentReads
    ownership: Ownership
    creating: Creating
    starting: Starting
    interrupting: Interrupting
    execute: Callable[[Principal, OtherCommand, str | None], Awaitable[Result]]
    submit: Callable[[Principal, SubmitTurn, str | None], Awaitable[TurnAccepted]]
    find_peer: Callable[[str], Peer]

    async def spawn(
        self, principal: Principal, command: SpawnSubagent, idem: str | None
    ) -> SubagentChanged:
        """Creates the task and the context of a subagent in one append, and sends it.

        If the send fails, nothing was sent: the subagent exists, and can be resumed or closed.

        Raises:
            NotFound, UnsupportedOperation, GraphLimit: an agent, session or parent that takes no child.
            IdempotencyConflict: the key was used for another request.
        """
        require_sending(principal, command.agent)
        card = self.find_peer(command.agent).peek()
        create = CreateTask(
            command.agent,
            command.objective,
            title=command.title,
            session_id=command.session_id,
            parent_task_id=command.parent_task_id,
            visibility=Visibility.BACKGROUND,
        )
        key = _name_key(idem, "spawn")
        protocol = card.protocol if card is not None else "a2a"
        created = await self.creating.create(principal, create, key, protocol)
        task_id = str(created.task["taskId"])
        owned = await self.ownership.find(principal, task_id, None, hidden=True)
        if not owned.record.attempts and owned.record.status in _UNSENT:
            start = StartTask(
                task_id,
                command.source,
                message=command.message,
                traceparent=command.traceparent,
                tracestate=command.tracestate,
            )
            await self.starting.start(principal, start, _name_key(idem, "start"))
        name = SubagentName(owned.record.thread_id or "", command.agent)
        subagent, _, _ = await self.reads.find(principal, str(name))
        return SubagentChanged(
            to_wire(subagent), "spawned", task_id=task_id, repeated=created.repeated
        )

    async def send(
        self, principal: Principal, command: SendSubagentInput, idem: str | None
    ) -> SubagentChanged:
        """Sends a message to the open task of a subagent, or as a new task in its context.

        Raises:
            NotFound: no such subagent of the caller, or its agent no longer exists.
            UnsupportedOperation: it is closed, or its task takes no message now.
        """
        subagent, name, family = await self.reads.find(principal, command.subagent_id)
        require_sending(principal, name.peer)
        accepted = await self._find_repeated(principal, subagent, name, command, idem)
        if accepted is None:
            if subagent.state == "closed":
                raise UnsupportedOperation(_CLOSED, subagent=command.subagent_id)
            task = _find_open(subagent, name, family)
            accepted = await self.submit(principal, _compose(command, subagent, name, task), idem)
            await self._link(principal, family, name, accepted)
        found, _, _ = await self.reads.find(principal, command.subagent_id)
        return SubagentChanged(
            to_wire(found), "sent", accepted.facade, accepted.turn_id, repeated=accepted.repeated
        )

    async def _link(
        self, principal: Principal, family: Family, name: SubagentName, accepted: TurnAccepted
    ) -> None:
        """Makes a further task of a subagent a child of the task it was spawned for, while that is open."""
        above = family.threads[name.thread_id].parent
        known = {task.task_id: task for task in family.tasks}
        if above is None or above.thread_id == name.thread_id or accepted.task_id in known:
            return
        parent = known.get(above.task_id)
        if parent is None or parent.status in ENDED:
            return
        with suppress(UnsupportedOperation, GraphLimit):
            link = LinkTasks(parent.task_id, "child", accepted.task_id)
            await self.execute(principal, link, None)

    async def _find_repeated(
        self,
        principal: Principal,
        subagent: Subagent,
        name: SubagentName,
        command: SendSubagentInput,
        idem: str | None,
    ) -> TurnAccepted | None:
        """The result of an earlier input with the same key: its task may have ended since; it is not sent again."""
        if idem is None:
            return None
        shard = EntityRef(EntityKind.THREAD, name.thread_id).shard
        log = self.reads.models.writes.log
        stored = await log.read_idempotency(shard, hash_key(principal, idem))
        if stored is None:
            return None
        receipt = from_bytes(TurnReceipt, stored[1])
        task = (await self.ownership.find(principal, receipt.task_id, None, hidden=True)).record
        for facade in (None, *(one for one in subagent.tasks if one.startswith(task.task_id))):
            turn = _compose(command, subagent, name, (task, facade) if facade else None)
            if digest_request(turn) == stored[0]:
                return await self.submit(principal, turn, idem)
        raise IdempotencyConflict("the idempotency key was used for another request")

    async def resume(self, principal: Principal, command: ResumeSubagent) -> SubagentChanged:
        """Resumes every open task of a subagent; nothing is sent twice.

        Raises:
            NotFound: no such subagent of the caller.
            UnsupportedOperation: it is closed.
        """
        subagent, name, family = await self.reads.find(principal, command.subagent_id)
        if subagent.state == "closed":
            raise UnsupportedOperation(_CLOSED, subagent=command.subagent_id)
        outcome, went = "idle", None
        for task in _list_open(subagent, name, family):
            outcome = await self._resume_one(principal, task, command)
            went = task.task_id
        found, _, _ = await self.reads.find(principal, command.subagent_id)
        return SubagentChanged(to_wire(found), outcome, task_id=went)  # type: ignore[arg-type]  # one of its words

    async def _resume_one(
        self, principal: Principal, task: TaskRecord, command: ResumeSubagent
    ) -> str:
        if not task.attempts and task.status in _UNSENT:
            await self.execute(principal, StartTask(task.task_id, "http"), None)
            return "resumed"
        if task.status in _STOPPED:
            await self.execute(principal, ResumeTask(task.task_id, reason=command.reason), None)
        owned = await self.ownership.find(principal, task.task_id, None, hidden=True)
        if owned.record.run is None:
            return "held" if owned.record.status is Status.BLOCKED else "resumed"
        attached = (await self.interrupting.attach(owned)).outcome
        return "resumed" if task.status in _STOPPED and attached == "attached" else attached

    async def close(self, principal: Principal, command: CloseSubagent) -> SubagentChanged:
        """Cancels a subagent's tasks with their subtrees, and closes its context.

        Raises:
            NotFound: no such subagent of the caller.
            Forbidden: the caller may not cancel its tasks.
        """
        subagent, name, family = await self.reads.find(principal, command.subagent_id)
        if subagent.state == "closed":
            return SubagentChanged(to_wire(subagent), "closed", repeated=True)
        await self._stop(principal, _list_open(subagent, name, family), command.reason)
        await self._store_end(principal, subagent, name)
        for _ in range(_TRIES):
            subagent, _, family = await self.reads.find(principal, command.subagent_id)
            begun = _list_open(subagent, name, family)
            begun = [one for one in begun if one.status is not Status.CANCELLING]
            if not begun:
                break
            await self._stop(principal, begun, command.reason)
        return SubagentChanged(to_wire(subagent), "closed")

    async def _stop(
        self, principal: Principal, wanted: list[TaskRecord], reason: str | None
    ) -> None:
        for task in wanted:
            cancel = CancelTask(task.task_id, reason=reason, propagation="subtree")
            with suppress(NotCancelable):
                await self.execute(principal, cancel, None)

    async def _store_end(
        self, principal: Principal, subagent: Subagent, name: SubagentName
    ) -> None:
        """Stores that the context is closed: in the record of its thread, and at the edge that was created with it."""
        parent, writes = subagent.parent, self.reads.models.writes
        thread = EntityRef(EntityKind.THREAD, name.thread_id)
        above = EntityRef(EntityKind.TASK, parent.task_id) if parent.task_id else None
        scope = Scope(
            parent.session_id, parent.thread_id or name.thread_id, parent.turn_id, parent.task_id
        )
        closing = CloseContext(name, scope, SubagentClosed("command", principal.id))

        def body(decision: Decision) -> AppendOptions:
            state = decision.state(thread)
            if not isinstance(state, ThreadRecord):
                raise NotFound("subagent", str(name))
            decision.add(threads.decide(state, closing))
            task = decision.state(above) if above is not None else None
            if decision.events and isinstance(task, TaskRecord):
                decision.add(_close_edge(task, str(name)))
            return AppendOptions()

        refs = [thread] if above is None else [thread, above]
        await writes.change(parent.session_id, refs, body)


def _close_edge(task: TaskRecord, name: str) -> list[Fact]:
    """Closes the edge that was created with the subagent; an edge derived from an attempt is closed by its thread."""
    for edge in task.relationships:
        if edge.kind == "spawned_subagent" and edge.target == name and edge.status == "open":
            closed = TaskDependencyUpdated(
                edge.edge_id, "spawned_subagent", name, "satisfied", "open", _CLOSED
            )
            return tasks.decide(task, LinkTask(closed))
    return []


def _name_key(idem: str | None, step: str) -> str | None:
    """A command with several steps uses one key per step."""
    return None if idem is None else f"{idem}\0{step}"


def _list_open(subagent: Subagent, name: SubagentName, family: Family) -> list[TaskRecord]:
    """The open tasks of a subagent, oldest first; a task that moved to another agent since is not included."""
    known = {task.task_id: task for task in family.tasks}
    found = (known.get(facade.partition("~")[0]) for facade in subagent.open_tasks)
    return [
        one
        for one in found
        if one is not None and one.status not in ENDED and one.peer == name.peer
    ]


def _find_open(
    subagent: Subagent, name: SubagentName, family: Family
) -> tuple[TaskRecord, str] | None:
    """The newest task that takes a message, with the id that callers know."""
    wanted = [one for one in _list_open(subagent, name, family) if one.attempts]
    if not wanted:
        return None
    task = wanted[-1]
    facade = next(one for one in subagent.open_tasks if one.startswith(task.task_id))
    return task, facade


def _compose(
    command: SendSubagentInput,
    subagent: Subagent,
    name: SubagentName,
    task: tuple[TaskRecord, str] | None,
) -> SubmitTurn:
    """The turn of an input."""
    context: JsonObject = {"contextId": subagent.context_id}
    named: JsonObject = {"taskId": task[1]} if task is not None else {}
    return SubmitTurn(
        agent=task[0].kind if task is not None else name.peer,
        message={**command.message, **context, **named},
        source=command.source,
        wait="none",
        task=task[1] if task is not None else None,
        context_id=subagent.context_id,
        traceparent=command.traceparent,
        tracestate=command.tracestate,
    )
