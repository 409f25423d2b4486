"""The waiting turns of a context: read, promoted, removed, and the policy for further messages (CMD-15, SNAP-4).

Each change is a fact of the session (``queue.changed``) with the whole new order, and is stored before the queue itself
is changed: after a crash in between, the due row of the turn moves it to the place in its record.

A task that was transferred while it waited keeps its place, and belongs to its new owner: the owner of the context
neither sees nor stops it here. Rules about cancelling apply to tasks that are stopped here.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Final

from passerelle.a2a_mapping.rpc import Method
from passerelle.core.agent_name import ROUTER
from passerelle.core.batch import DueChange, EntityKind, EntityRef
from passerelle.core.commands import CancelTask
from passerelle.core.errors import (
    Forbidden,
    NotCancelable,
    NotFound,
    WriteConflict,
)
from passerelle.core.frozen import frozen
from passerelle.core.ids import TaskId, expose
from passerelle.core.payloads.conversation import QueueChanged
from passerelle.core.payloads.task import TaskCancelRequested
from passerelle.core.read_models.turn_queue import list_gated, list_queued
from passerelle.core.session import thread as threads
from passerelle.core.session.requests import (
    GetTurnQueue,
    PromoteQueuedTurn,
    RemoveQueuedTurn,
    SetQueuePolicy,
    TurnQueue,
)
from passerelle.core.session.thread import ChangeQueue, ThreadRecord
from passerelle.core.task import machine as tasks
from passerelle.core.task.commands import QueueTask
from passerelle.core.task.record import TaskRecord, waits_for_turn
from passerelle.core.task.status import Status
from passerelle.core.wire.codec import from_bytes, to_wire
from passerelle.delegation.runs.holds import INTERRUPTS, QUEUED, InterruptRequest
from passerelle.runtime.common.calls import require_operation
from passerelle.runtime.records.open_questions import load_questions
from passerelle.runtime.records.ownership import Owned, find_own, hide_unread, may_read, may_see
from passerelle.runtime.records.starting_tasks import load_waiting
from passerelle.runtime.records.writes import AppendOptions

if TYPE_CHECKING:
    from collections.abc import Callable

    from passerelle.control.cancellation import Cancelling
    from passerelle.control.handlers import Handlers
    from passerelle.core.decision import Decision
    from passerelle.core.ids import Shard
    from passerelle.core.ports.due import DropRow, DueRow
    from passerelle.core.principal import Principal
    from passerelle.core.session.requests import GatedTurn
    from passerelle.core.wire.json import JsonObject
    from passerelle.delegation.runs.agent_queues import AgentQueues
    from passerelle.delegation.runs.turn_request import OpenedTurn
    from passerelle.permission_bridge.governing.command_gate import CommandGate
    from passerelle.runtime.records.writes import Body, Writes


@frozen
class TurnQueues:
    """Changes the waiting turns of callers."""

    writes: Writes
    queues: AgentQueues
    cancelling: Cancelling
    governing: CommandGate
    find_principal: Callable[[str, str], Principal | None]

    def register(self, handlers: Handlers) -> None:
        """Registers the commands and the query."""
        handlers.on_repeatable(PromoteQueuedTurn, self.promote)
        handlers.on_repeatable(RemoveQueuedTurn, self.remove)
        handlers.on_repeatable(SetQueuePolicy, self.set_policy)
        handlers.on_query(GetTurnQueue, self.read)

    async def read(self, principal: Principal, query: GetTurnQueue) -> JsonObject:
        """The waiting turns, in order. Raises NotFound: no such context of the caller."""
        return to_wire(
            await self._render(
                principal, await find_own(self.writes, ThreadRecord, principal, query.thread_id)
            )
        )

    async def set_policy(self, principal: Principal, command: SetQueuePolicy) -> TurnQueue:
        """Sets the policy for messages that arrive while the context is busy.

        Raises:
            NotFound: no such context of the caller.
            Forbidden: they are to interrupt others, and the caller may not cancel tasks of all of its agents.
        """
        thread = await find_own(self.writes, ThreadRecord, principal, command.thread_id)
        if command.policy == "interrupt":
            # Messages may follow to any of its agents.
            require_operation(principal, ROUTER, Method.CANCEL_TASK)
        if (thread.queue_policy or "parallel") != command.policy:
            order = await self.queues.list_waiting(thread.thread_id)
            changed = QueueChanged("policy", order, command.policy)
            thread = await self._change(thread, changed)
        return await self._render(principal, thread)

    async def promote(self, principal: Principal, command: PromoteQueuedTurn) -> TurnQueue:
        """Moves a turn to the front of the queue; no effect if it is there already.

        Raises:
            NotFound: no such context of the caller, or no such turn waits in it.
        """
        thread, found = await self._find_turn(principal, command)
        order = await self.queues.list_waiting(thread.thread_id)
        if order[:1] == (command.queued_turn_id,):
            return await self._render(principal, thread)
        first = (command.queued_turn_id, *(one for one in order if one != command.queued_turn_id))
        ref = EntityRef(EntityKind.TASK, found.task_id)

        def body(decision: Decision) -> AppendOptions:
            task = decision.state(ref)
            if not isinstance(task, TaskRecord) or (queued := task.queued) is None:
                raise NotFound("queued turn", command.queued_turn_id)
            moved = QueueTask(
                queued.queue,
                task.status_reason or "",
                1,
                queued.cause,
                queued.attempt,
                queued.send_options,
                decision.now_ms,
                queued.until,
                queued.unpaid,
            )
            decision.add(tasks.decide(task, moved))
            return AppendOptions(due=(DueChange(f"{QUEUED}:{ref.id}", decision.now_ms),))

        thread = await self._change(thread, QueueChanged("promoted", first), ref, body)
        record = (await self.writes.load_one(ref)).record
        if isinstance(record, TaskRecord):
            await self.queues.enter(record)
        return await self._render(principal, thread)

    async def remove(self, principal: Principal, command: RemoveQueuedTurn) -> TurnQueue:
        """Removes a turn; its task is cancelled.

        Raises:
            NotFound: no such context of the caller, or no such turn waits in it.
            Forbidden: a rule denies cancelling its task, or requires an approval; it keeps waiting.
        """
        thread, found = await self._find_turn(principal, command)
        await self.governing.govern(principal, _cancel(found, command.reason))
        order = await self.queues.list_waiting(thread.thread_id)
        left = tuple(one for one in order if one != command.queued_turn_id)
        thread = await self._change(thread, QueueChanged("removed", left))
        ref = EntityRef(EntityKind.TASK, found.task_id)
        held = await self.writes.load_one(ref)
        if isinstance(held.record, TaskRecord):
            requested = TaskCancelRequested(principal.id, "user", "active_run", command.reason)
            await self.cancelling.stop(principal, Owned(ref, held, held.record), requested)
        await self.queues.store.drop(f"thread:{thread.thread_id}", found.task_id)
        return await self._render(principal, thread)

    async def interrupt(self, principal: Principal, opened: OpenedTurn) -> None:
        """Stops the turns that were running when this one arrived, and moves it to the front of the queue.

        Tasks that belong to another owner now, or that a rule does not allow to cancel, continue.

        Raises:
            NotFound: the turn no longer waits; nothing is stopped.
        """
        await self._interrupt(principal, opened.task)

    async def on_due(
        self,
        shard: Shard,
        row: DueRow,
        now_ms: int,
        drop: DropRow,
    ) -> None:
        """``queued:<task>``: checks the queue, and carries out an interrupt that is still pending.

        Raises:
            StoreUnavailable, WriteConflict: the row comes due again.
        """
        held = await self.queues.on_due(shard, row, now_ms, drop)
        if INTERRUPTS not in held.fields or not waits_for_turn(held.record):
            return
        scope = held.record.scope
        principal = self.find_principal(scope.principal, scope.tenant)
        if principal is not None:
            with suppress(NotFound):  # it was transferred, or no longer waits
                await self._interrupt(principal, EntityRef(EntityKind.TASK, row.entity))

    async def _interrupt(self, principal: Principal, ref: EntityRef) -> None:
        """Carries out a task's pending interrupt of its context, and clears it."""
        held = await self.writes.load_one(ref)
        stored, record = held.fields.get(INTERRUPTS), held.record
        if stored is None or not waits_for_turn(record):
            return
        thread = await find_own(self.writes, ThreadRecord, principal, record.thread_id or "")
        if record.queued is not None and record.queued.promoted_ms is None:
            wanted = PromoteQueuedTurn(thread.thread_id, record.turn_id or "")
            await self.promote(principal, wanted)
        await self._stop(principal, thread, from_bytes(InterruptRequest, stored).turns)

        def body(decision: Decision) -> AppendOptions:
            if INTERRUPTS in decision.fields(ref):
                decision.set_field(ref, INTERRUPTS, None)
            return AppendOptions()

        await self.writes.decide(record.session_id, [ref], body)

    async def _stop(
        self, principal: Principal, thread: ThreadRecord, turns: tuple[str, ...]
    ) -> None:
        """Cancels those of a caller's tasks whose turns are among these and still running."""
        log = self.writes.log
        names = [one for one in await log.read_open(thread.session_id) if one.startswith("task_")]
        refs = [EntityRef(EntityKind.TASK, one) for one in names]
        for ref, held in (await self.writes.load(refs)).items() if refs else ():
            record = held.record
            if (
                isinstance(record, TaskRecord)
                and record.owner == principal.key
                and record.thread_id == thread.thread_id
                and set(record.open_turns) & set(thread.active_turns) & set(turns)
                and record.status is not Status.CANCELLING
            ):
                requested = TaskCancelRequested(principal.id, "user", "active_run", _INTERRUPTED)
                # A task that has ended meanwhile needs no stop.
                with suppress(Forbidden, NotFound, NotCancelable, WriteConflict):
                    await self.governing.govern(principal, _cancel(record, _INTERRUPTED))
                    await self.cancelling.stop(principal, Owned(ref, held, record), requested)

    async def _change(
        self,
        thread: ThreadRecord,
        changed: QueueChanged,
        task: EntityRef | None = None,
        further: Body | None = None,
    ) -> ThreadRecord:
        ref = EntityRef(EntityKind.THREAD, thread.thread_id)

        def body(decision: Decision) -> AppendOptions:
            options = AppendOptions() if further is None else further(decision)
            state = decision.state(ref)
            if isinstance(state, ThreadRecord):
                decision.add(threads.decide(state, ChangeQueue(changed)))
            return options

        refs = [ref] if task is None else [ref, task]
        written = await self.writes.change(thread.session_id, refs, body)
        stored = written.held[ref].record
        return stored if isinstance(stored, ThreadRecord) else thread

    async def _find_turn(
        self, principal: Principal, command: PromoteQueuedTurn | RemoveQueuedTurn
    ) -> tuple[ThreadRecord, TaskRecord]:
        thread = await find_own(self.writes, ThreadRecord, principal, command.thread_id)
        for record in await self._list_all(thread):
            if record.turn_id == command.queued_turn_id and may_see(principal, record):
                return thread, record
        # Its instance may have crashed before it was queued, and its due row is not due yet.
        opened = await self.writes.log.read_open(thread.session_id)
        names = [one for one in opened if one.startswith(_TASKS)]
        for record in await load_waiting(self.writes, names):
            if record.turn_id == command.queued_turn_id and may_see(principal, record):
                await self.queues.enter(record)
                return thread, record
        raise NotFound("queued turn", command.queued_turn_id)

    async def _list_all(self, thread: ThreadRecord) -> list[TaskRecord]:
        """The waiting tasks of a context, in order."""
        names = await self.queues.store.list_waiting(f"thread:{thread.thread_id}")
        return await load_waiting(self.writes, names)

    async def _render(self, principal: Principal, thread: ThreadRecord) -> TurnQueue:
        waiting = hide_unread(principal, await self._list_all(thread))
        turns = list_queued(waiting, principal.key, thread.active_turns)
        policy = thread.queue_policy or "parallel"
        gated = await self._list_gated(principal, thread)
        return TurnQueue(thread.thread_id, policy, turns, thread.active_turns, gated)

    async def _list_gated(
        self, principal: Principal, thread: ThreadRecord
    ) -> tuple[GatedTurn, ...]:
        """The turns whose message waits for an approval; if the session has no open request, no task is read."""
        opened = await self.writes.log.read_open(thread.session_id)
        if not any(one.startswith(_ACTIONS) for one in opened):
            return ()
        names = (one for one in opened if one.startswith(_TASKS))
        tasks = (await self.writes.read_all(TaskRecord, names)).values()
        found = [
            one for one in tasks if one.thread_id == thread.thread_id and may_read(principal, one)
        ]
        questions = await load_questions(self.writes, found)
        return list_gated(found, questions, principal.key)


def _cancel(record: TaskRecord, reason: str | None) -> CancelTask:
    """The command that rules about cancelling judge."""
    return CancelTask(expose(TaskId(record.task_id), record.exposure), reason=reason)


_TASKS: Final = "task_"
_ACTIONS: Final = "act_"
_INTERRUPTED = "another message of its context goes first"
