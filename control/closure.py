"""Ends that a task's owner requests: completed, failed, or cancelled before an agent was involved (CMD-11, MK-10).

Each is written through the run, under the fence of its driver, like every other end: approval requests are closed,
limits are dropped, and callers who see the task are notified. Completing requires every fact that the state machine
asks for (I5).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from passerelle.a2a_mapping.rpc import Method
from passerelle.a2a_mapping.states import CANCELED, COMPLETED, FAILED
from passerelle.control.task_changes import check_version, render_change
from passerelle.core.errors import StoreUnavailable, UnsupportedOperation, WriteConflict
from passerelle.core.facts import ErrorCategory, ErrorDetail
from passerelle.core.frozen import frozen
from passerelle.core.payloads.task import TaskCancelled, TaskCancelRequested, TaskCompleted
from passerelle.core.task import commands as tell
from passerelle.core.task.completion import find_missing
from passerelle.core.task.requests import CompleteTask, FailTask
from passerelle.core.task.status import ENDED, Delivery, Status
from passerelle.delegation.runs.completion import go_on
from passerelle.delegation.runs.draft import FACADE
from passerelle.delegation.runs.reconciliation import deliver_to_parent, read_withheld, supply
from passerelle.delegation.runs.run import RunMovedError
from passerelle.runtime.common.calls import require_operation
from passerelle.runtime.records.idempotency import make_once
from passerelle.runtime.records.writes import AppendOptions

if TYPE_CHECKING:
    from collections.abc import Callable

    from passerelle.core.batch import DueChange
    from passerelle.core.principal import Principal
    from passerelle.core.task.requests import TaskChanged
    from passerelle.core.wire.json import JsonObject
    from passerelle.delegation.runs.dispatch import Dispatch
    from passerelle.delegation.runs.draft import DecisionDraft
    from passerelle.runtime.records.idempotency import Once
    from passerelle.runtime.records.ownership import Owned, Ownership

_SOURCE = "owner"


@frozen
class Finishing:
    """Ends tasks on behalf of their owners."""

    ownership: Ownership
    dispatch: Dispatch

    async def complete(
        self, principal: Principal, command: CompleteTask, idem: str | None
    ) -> TaskChanged:
        """Completes a task.

        Raises:
            UnsupportedOperation: the status does not allow it, or a required fact is missing and is named.
        """
        owned = await self.ownership.find(principal, command.task_id, None, hidden=True)
        if owned.record.withheld is None:
            return await self._end(
                principal, command, idem, lambda draft: _complete(draft, command)
            )
        frame = await self._supply(owned, owned.record.withheld)
        return await self._end(
            principal, command, idem, lambda draft: _complete_withheld(draft, frame)
        )

    async def _supply(self, owned: Owned, withheld: str) -> JsonObject:
        """Tries once more to supply the missing facts before the answer; returns the agent's last frame."""
        driver = self.dispatch.find(owned.ref.id)
        if driver is None:
            return await read_withheld(await self.dispatch.hold(owned.ref.id), withheld)
        await supply(driver)
        await deliver_to_parent(driver)
        return await read_withheld(driver.run, withheld)

    async def fail(self, principal: Principal, command: FailTask, idem: str | None) -> TaskChanged:
        """Fails a task; an agent that works on it is asked to stop.

        Raises:
            UnsupportedOperation: the task has ended.
            Forbidden: an agent works on it, and the caller may not cancel tasks of the agent.
        """
        return await self._end(principal, command, idem, lambda draft: _fail(draft, command))

    async def stop(
        self, owned: Owned, requested: TaskCancelRequested, owed: tuple[DueChange, ...] = ()
    ) -> None:
        """Cancels a task without an agent, or leaves its agent running: request and end are one append.

        ``owed``: further due rows of that append.
        """
        await self._write(owned, None, lambda draft: _stop(draft, requested), None, owed)

    async def _end(
        self,
        principal: Principal,
        command: CompleteTask | FailTask,
        idem: str | None,
        end: Callable[[DecisionDraft], None],
    ) -> TaskChanged:
        owned = await self.ownership.find(principal, command.task_id, None, hidden=True)
        once = make_once(principal, command, idem)
        if await once.find(self.dispatch.writes.log, owned.ref.shard) is not None:
            return render_change(owned.held, repeated=True)
        run = owned.record.run
        if isinstance(command, FailTask) and run is not None:
            require_operation(principal, owned.record.kind, Method.CANCEL_TASK)
        await self._write(owned, command.version, end, once)
        is_at_work = owned.record.withheld is None
        if is_at_work and run is not None and run.remote_task_id is not None:
            self.dispatch.detach(self.dispatch.stop_peer(run.worker.peer, run.remote_task_id))
        return render_change(await self.dispatch.writes.load_one(owned.ref))

    async def _write(
        self,
        owned: Owned,
        version: int | None,
        end: Callable[[DecisionDraft], None],
        once: Once | None,
        owed: tuple[DueChange, ...] = (),
    ) -> None:
        driver = self.dispatch.find(owned.ref.id)
        run = driver.run if driver is not None else await self.dispatch.hold(owned.ref.id)

        def body(draft: DecisionDraft) -> None:
            check_version(version, draft.decision.version(owned.ref))
            end(draft)

        row = once.remember(owned.ref.id) if once else None
        try:
            await run.append(body, lambda _draft: AppendOptions(due=owed, idem=row))
        except RunMovedError:
            raise StoreUnavailable("the run is being moved", "no") from None
        self.dispatch.runs.drop(owned.ref.id)


def _complete(draft: DecisionDraft, command: CompleteTask) -> None:
    record = draft.record
    last = record.attempts[-1] if record.attempts else None
    completed = TaskCompleted(
        native_status=(last.native_status if last else None) or "",
        artifacts=tuple(artifact.artifact_id for artifact in record.artifacts),
        evidence=record.evidence_refs,
        delivery=record.delivery.get(FACADE, Delivery.NOT_APPLICABLE),
    )
    facts = draft.decide(tell.SucceedTask(completed))
    draft.close_actions("task_cancelled")
    if record.shown:
        draft.end_with(facts, COMPLETED, command.summary or "completed by its owner")
        return
    draft.add(facts)
    draft.end_turn("task")


def _complete_withheld(draft: DecisionDraft, frame: JsonObject) -> None:
    if draft.record.status is Status.COMPLETED:
        return  # its driver has completed it with the same frame
    go_on(draft, frame)
    if draft.record.status not in ENDED:
        missing = find_missing(draft.record) or f"the task is {draft.record.status}"
        raise UnsupportedOperation(f"the task cannot complete yet: {missing}", missing=missing)


def _fail(draft: DecisionDraft, command: FailTask) -> None:
    failure = ErrorDetail(command.code, ErrorCategory.CALLER, command.reason, source=_SOURCE)
    facts = draft.decide(tell.EndInError(failure))
    if draft.record.run is not None:
        draft.add(draft.decide(tell.FailRun(Status.FAILED, failure)))
    draft.close_actions("task_cancelled")
    draft.end_with(facts, FAILED, command.reason)


def _stop(draft: DecisionDraft, requested: TaskCancelRequested) -> None:
    works = draft.record.run is not None
    if works and requested.propagation != "none":
        raise WriteConflict("the task was started just now; cancel it again")
    draft.add(draft.decide(tell.RequestCancel(requested)))
    if works:
        stopped = ErrorDetail(
            "cancelled", ErrorCategory.CALLER, "left to its agent", source=_SOURCE
        )
        draft.add(draft.decide(tell.FailRun(Status.CANCELLED, stopped)))
    draft.close_actions("task_cancelled")
    cancelled = TaskCancelled(requested.actor, requested.source)
    facts = draft.decide(tell.ConfirmCancel(cancelled))
    draft.end_with(
        facts,
        CANCELED,
        requested.reason or ("cancelled" if works else "cancelled before it was sent"),
    )
