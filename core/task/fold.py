"""The fold of a task: facts in, record out. Total: it never raises; an unreadable event makes the record stale."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from passerelle.core.events import OpaquePayload, VendorPayload
from passerelle.core.payloads import task as task_facts
from passerelle.core.payloads.limit import CostRecorded
from passerelle.core.task.folds import life, relations, runs
from passerelle.core.task.folds.changes import Folds
from passerelle.core.task.record import SCHEMA, TaskRecord, TaskScope
from passerelle.core.task.status import Status
from passerelle.core.wire.record import change, fill

if TYPE_CHECKING:
    from passerelle.core.events import Event


def folds_task(event: Event) -> bool:
    """Whether the event changes the record of the task that its scope names."""
    return event.fact.scope.task_id is not None and type(event.fact.payload) in FOLDED


def evolve(state: TaskRecord | None, event: Event) -> TaskRecord | None:
    """The record after an event; unchanged if it is of another task, already folded, or has no effect."""
    payload = event.fact.payload
    if isinstance(payload, task_facts.TaskCreated):
        return state or _create(payload, event)
    if state is None or event.fact.scope.task_id != state.task_id or event.sequence <= state.last:
        return state
    if isinstance(payload, VendorPayload):
        return state
    if isinstance(payload, OpaquePayload):
        return change(state, last=event.sequence, stale_from=state.stale_from or event.sequence)
    fold = _FOLDS.get(type(payload))
    if fold is None:
        return state
    folded = fold(state, payload, event)
    if isinstance(payload, CostRecorded):
        return folded  # older versions did not fold it, so it must change no other member
    return _close(change(state) if folded is state else folded, event)


def _create(payload: task_facts.TaskCreated, event: Event) -> TaskRecord:
    scope = event.fact.scope
    task_id = scope.task_id or ""
    record = TaskRecord(
        schema=SCHEMA,
        task_id=task_id,
        session_id=scope.session_id,
        thread_id=scope.thread_id,
        turn_id=scope.turn_id,
        parent_task_id=payload.parent_task_id,
        root_task_id=payload.root_task_id or task_id,
        title=payload.title,
        objective=payload.objective,
        kind=payload.kind,
        family=payload.family,
        visibility=payload.visibility,
        status=Status.DRAFT,
        priority=payload.priority,
        requested_by=payload.requested_by,
        owner=payload.owner,
        assignee=payload.assignee,
        scope=_bound(payload),
        constraints=payload.constraints,
        profile=payload.profile,
        acceptance=payload.acceptance,
        metadata=payload.metadata,
        created_at=event.timestamp,
        updated_at=event.timestamp,
        status_at=event.timestamp,
        first=event.sequence,
        last=event.sequence,
    )
    return _close(record, event)


def _bound(payload: task_facts.TaskCreated) -> TaskScope:
    scope = TaskScope(payload.tenant, payload.requested_by, payload.context_id)
    bounds = payload.scope
    if bounds is None:
        return scope
    return change(
        scope,
        workspace=bounds.workspace,
        project=bounds.project,
        thread=bounds.thread,
        account=bounds.account,
        environment=bounds.environment,
        host=bounds.host,
    )


def _close(fresh: TaskRecord, event: Event) -> TaskRecord:
    """Members that every folded event updates: sequence and time, and what callers have seen."""
    payload = event.fact.payload
    bare = isinstance(payload, task_facts.TaskCompleted) and payload.answer == "message"
    if event.fact.facade is None or bare:
        fill(fresh, last=event.sequence, updated_at=event.timestamp)
        return fresh
    fill(
        fresh,
        last=event.sequence,
        updated_at=event.timestamp,
        shown=True,
        generation=fresh.generation + 1,
        shown_from=fresh.shown_from or event.sequence,
        shown_to=event.sequence,
    )
    return fresh


_FOLDS: Final[Folds] = {
    task_facts.TaskCreated: lambda state, _payload, _event: state,
    **life.FOLDS,
    **runs.FOLDS,
    **relations.FOLDS,
}
FOLDED: Final[frozenset[type]] = frozenset({*_FOLDS, OpaquePayload})
