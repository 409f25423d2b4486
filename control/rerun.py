"""Retries a task at the request of its owner or operator (CMD-10, ATT-17).

Earlier attempts stay recorded and no longer count: the retry policy starts over, at the agent that was asked first or
at the one that is named. The attempt is scheduled by this append, like every further attempt.

A task whose end callers have seen continues under another facade id, in the same context, with an edge to the earlier
one, which stays unchanged byte for byte (LT-12, LT-13).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from passerelle.a2a_mapping.frames import make_status, task_frame
from passerelle.a2a_mapping.history import complete_history
from passerelle.a2a_mapping.rpc import Method
from passerelle.a2a_mapping.states import SUBMITTED
from passerelle.control.task_changes import check_version, render_steered
from passerelle.core.batch import DueChange
from passerelle.core.errors import NotFound, StoreUnavailable, UnsupportedOperation
from passerelle.core.events import Fact
from passerelle.core.facts import ErrorCategory, ErrorDetail
from passerelle.core.frozen import frozen
from passerelle.core.ids import TaskId, expose
from passerelle.core.payloads.task import TaskDependencyUpdated, TaskRetrying
from passerelle.core.task import commands as tell
from passerelle.core.task import machine as tasks
from passerelle.core.task.guards import require_unblocked
from passerelle.core.task.status import TERMINAL, Status
from passerelle.core.wire.times import format_ms
from passerelle.delegation.runs.admission import AttemptReservation
from passerelle.delegation.runs.failure import list_tried, name_row, show_retrying
from passerelle.delegation.runs.run import RunMovedError
from passerelle.runtime.common.calls import require_operation
from passerelle.runtime.records.blob_overflow import show
from passerelle.runtime.records.exposures import freeze, name_field
from passerelle.runtime.records.family import check_above
from passerelle.runtime.records.idempotency import make_once
from passerelle.runtime.records.task_fields import CONTENT
from passerelle.runtime.records.writes import AppendOptions

if TYPE_CHECKING:
    from collections.abc import Callable

    from passerelle.core.peer import Peer
    from passerelle.core.principal import Principal
    from passerelle.core.task.record import TaskRecord
    from passerelle.core.task.requests import RetryTask, TaskChanged
    from passerelle.core.wire.json import JsonObject
    from passerelle.delegation.runs.dispatch import Dispatch
    from passerelle.delegation.runs.draft import DecisionDraft
    from passerelle.delegation.runs.plan import Planner
    from passerelle.runtime.records.idempotency import Once
    from passerelle.runtime.records.ownership import Owned, Ownership

_RETRIABLE: Final = TERMINAL | {Status.RETRYING, Status.LOST}
"""States in which no agent works on the task, as far as known."""


@frozen
class Rerunning:
    """Retries tasks."""

    ownership: Ownership
    planning: Planner
    dispatch: Dispatch
    find_peer: Callable[[str], Peer]

    async def rerun(
        self, principal: Principal, command: RetryTask, idem: str | None
    ) -> TaskChanged:
        """Schedules a further attempt, once per idempotency key.

        Raises:
            NotFound: no such task of the caller, and none that it operates; or no such agent for the caller. An
            operator
                needs no right to call the agent that was asked before.
            UnsupportedOperation: the task was never started, is running, or a task above it is being cancelled.
            VersionMismatch, IdempotencyConflict, Limited: nothing is written.
        """
        owned = await self.ownership.find_operated(principal, command.task_id, None, hidden=True)
        once = make_once(principal, command, idem)
        if await once.find(self.dispatch.writes.log, owned.ref.shard) is not None:
            return render_steered(principal, owned.held, repeated=True)
        _check(owned.record)
        await check_above(self.dispatch.writes, owned.record)
        agent = command.agent or list_tried(owned.record).peers[0]
        # A retry without another agent needs only a grant for the agent that was asked.
        granted = command.agent or owned.record.agent
        is_operated = owned.record.owner != principal.key and command.agent is None
        if not (principal.sees(granted) if is_operated else principal.may_call(granted)):
            raise NotFound("agent", granted)
        require_operation(principal, granted, Method.SEND_MESSAGE)
        self.find_peer(agent)
        charge = await self.planning.spending.charge(principal, agent, opens=True)

        def retry(draft: DecisionDraft) -> None:
            check_version(command.version, draft.decision.version(owned.ref))
            _check(draft.record)
            draft.add([Fact(tasks.scope_of(draft.record), payload) for payload in charge.facts])
            _retry(draft, TaskRetrying(command.reason, 0, None, agent, principal.id))

        with AttemptReservation(charge=charge):
            await self._write(owned, retry, once)
        return render_steered(principal, await self.dispatch.writes.load_one(owned.ref))

    async def _write(
        self, owned: Owned, retry: Callable[[DecisionDraft], None], once: Once
    ) -> None:
        driver = self.dispatch.find(owned.ref.id)
        run = driver.run if driver is not None else await self.dispatch.hold(owned.ref.id)
        row = once.remember(owned.ref.id)
        try:
            await run.append(retry, lambda _draft: AppendOptions(idem=row))
        except RunMovedError:
            raise StoreUnavailable("the run is being moved", "no") from None
        if driver is not None:
            driver.wake()


def _check(record: TaskRecord) -> None:
    if not record.attempts:
        raise UnsupportedOperation("the task was never started", status=record.status)
    if record.status not in _RETRIABLE:
        raise UnsupportedOperation("the task is under way", status=record.status)
    require_unblocked(record)


def _retry(draft: DecisionDraft, requested: TaskRetrying) -> None:
    record, now_ms = draft.record, draft.decision.now_ms
    if record.run is not None:
        reason = record.status_reason or "it is unknown whether the agent works on it"
        lost = ErrorDetail("lost", ErrorCategory.TRANSPORT, reason, source=record.run.worker.peer)
        draft.close_actions("asker_lost")
        draft.add(draft.decide(tell.FailRun(Status.LOST, lost)))
    is_over = record.status in TERMINAL
    # A task or message whose end callers have seen is never shown in another state.
    is_seen = record.shown or record.status is Status.COMPLETED
    retrying = TaskRetrying(
        reason=requested.reason,
        ordinal=len(record.attempts) + 1,
        next_at=format_ms(now_ms),
        peer=requested.peer,
        actor=requested.actor,
        exposure=record.exposure + 1 if is_over and is_seen else None,
    )
    facts = draft.decide(tell.PrepareRetry(retrying))
    if is_over:
        _expose(draft, facts, retrying.exposure or record.exposure)
    else:
        show_retrying(draft, facts, requested.reason)
    draft.due.append(DueChange(name_row(record.task_id), now_ms))


def _expose(draft: DecisionDraft, facts: list[Fact], exposure: int) -> None:
    """Shows the task as submitted: under its next facade id if its end was seen; the earlier one is kept frozen."""
    record, context, decision = draft.record, draft.context, draft.decision
    before = draft.facade
    if exposure != record.exposure:
        decision.set_field(
            context.task, name_field(record.exposure), freeze(record, decision.fields(context.task))
        )
    decision.set_field(context.task, CONTENT, None)
    facade = expose(TaskId(record.task_id), exposure)
    status = make_status(SUBMITTED, format_ms(decision.now_ms))
    task: JsonObject = {"id": facade, "contextId": context.context_id, "status": status}
    context.content, context.answer, context.place = (
        complete_history(task, context.accepted),
        None,
        None,
    )
    draft.add(show(draft.spill, facts[-1], task_frame(context.content), facade, "status"))
    if exposure != record.exposure and record.shown:
        edge = TaskDependencyUpdated(f"source:{before}", "source_task", before, "satisfied")
        draft.add(draft.decide(tell.LinkTask(edge)))
