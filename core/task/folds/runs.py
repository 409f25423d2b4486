"""The attempts of a task: start, end, and status messages."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from passerelle.core.facts import Ref
from passerelle.core.payloads import task as task_facts
from passerelle.core.payloads.limit import CostRecorded
from passerelle.core.payloads.run import ModelRequested, RunStatus
from passerelle.core.task.folds.changes import (
    Folds,
    change_attempt,
    end_preparation,
    merge_progress,
    set_status,
    take_step,
)
from passerelle.core.task.record import WITHHELD, Attempt, RunCost, TaskRecord
from passerelle.core.task.status import Phase, Status
from passerelle.core.wire.record import change

if TYPE_CHECKING:
    from passerelle.core.events import Event


def _attempt_started(
    state: TaskRecord, payload: task_facts.TaskAttemptStarted, event: Event
) -> TaskRecord:
    attempt = Attempt(
        run_id=event.fact.scope.run_id or "",
        ordinal=payload.ordinal,
        status=Status.RUNNING,
        worker=payload.worker,
        native_protocol=payload.native_protocol,
        delivery_mechanism=payload.delivery_mechanism,
        retry_policy=payload.retry_policy,
        message_id=payload.message_id,
        pending_message_id=payload.message_id,
        started_at=event.timestamp,
        last_seen_at=event.timestamp,
        remote_task_id=payload.remote_task_id,
        remote_context_id=payload.remote_context_id,
        traceparent=payload.traceparent,
        tracestate=payload.tracestate,
        extensions=payload.extensions,
        gated=payload.gated,
        input_refs=tuple(Ref(sequence=sequence) for sequence in state.inputs),
        reason=payload.reason if payload.ordinal > 1 else None,
        asked_by=state.asked_by,
    )
    state = change(
        state,
        attempts=(*state.attempts, attempt),
        asked_by=None,
        retry_at=None,
        withheld=None,
        coverage=None,
        current_run_id=attempt.run_id,
        assignee=payload.worker.peer,
    )
    state = merge_progress(end_preparation(state), phase=Phase.WORKING)
    if state.queued is not None:
        state = change(state, queued=None)
    return set_status(state, event, Status.RUNNING, status_reason=None)


def _attempt_completed(
    state: TaskRecord, payload: task_facts.TaskAttemptCompleted, event: Event
) -> TaskRecord:
    return change_attempt(
        change(state, current_run_id=None),
        event,
        status=Status.COMPLETED,
        ended_at=event.timestamp,
        native_status=payload.native_status,
        completion_summary=payload.summary,
        pending_message_id=None,
        streaming=None,
        output_refs=tuple(
            artifact.artifact_id
            for artifact in state.artifacts
            if artifact.run_id == event.fact.scope.run_id
        ),
    )


def _attempt_failed(
    state: TaskRecord, payload: task_facts.TaskAttemptFailed, event: Event
) -> TaskRecord:
    changes: dict[str, Any] = (
        {} if payload.native_status is None else {"native_status": payload.native_status}
    )
    return change_attempt(
        change(state, current_run_id=None, withheld=None),
        event,
        status=payload.status,
        ended_at=event.timestamp,
        last_error=payload.error,
        streaming=None,
        **changes,
    )


def _run_said(state: TaskRecord, payload: RunStatus, event: Event) -> TaskRecord:
    changes: dict[str, Any] = {
        name: value
        for name, value in (
            ("remote_task_id", payload.remote_task_id),
            ("remote_context_id", payload.remote_context_id),
            ("delivery_mechanism", payload.delivery_mechanism),
            ("status_message_id", payload.message_id),
        )
        if value is not None
    }
    state = take_step(state, event, payload.native_status)
    if changes and state.current_run_id == event.fact.scope.run_id:
        # The agent's ids and the delivery mechanism may become known without a frame of it.
        state = change_attempt(state, event, **changes)
    if payload.broke:
        state = change_attempt(state, event, broken_at=event.timestamp)
    if payload.stalled:
        state = change_attempt(state, event, stalled_at=event.timestamp)
    if payload.refused is not None:
        state = change_attempt(state, event, pending_message_id=None, last_error=payload.refused)
    if payload.waits_on is not None:
        state = change_attempt(state, event, waits_on=payload.waits_on)
    withheld = event.fact.refs.get(WITHHELD)
    if withheld is not None:
        state = change(state, withheld=withheld.blob)
    return merge_progress(state, phase=payload.phase, summary=payload.text)


def _requested(state: TaskRecord, payload: ModelRequested, event: Event) -> TaskRecord:
    changed = payload.updated_input
    changes: dict[str, Any] = {} if changed is None else {"updated_input": changed}
    return change_attempt(
        state,
        event,
        pending_message_id=payload.message_id,
        intended_at=event.timestamp,
        send_after=None,
        gated=state.run is not None
        and state.run.gated
        and payload.message_id != state.run.message_id,
        **changes,
    )


def _cost_recorded(state: TaskRecord, payload: CostRecorded, event: Event) -> TaskRecord:
    cost = RunCost(
        payload.amount_micros, payload.currency, payload.input_tokens, payload.output_tokens
    )
    run_id = event.fact.scope.run_id
    attempts = tuple(
        change(attempt, cost=cost) if attempt.run_id == run_id else attempt
        for attempt in state.attempts
    )
    return change(state, attempts=attempts)


FOLDS: Final[Folds] = {
    CostRecorded: _cost_recorded,
    task_facts.TaskAttemptStarted: _attempt_started,
    task_facts.TaskAttemptCompleted: _attempt_completed,
    task_facts.TaskAttemptFailed: _attempt_failed,
    RunStatus: _run_said,
    ModelRequested: _requested,
}
