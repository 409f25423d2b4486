"""The status of a task, its description and its progress."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, cast

from passerelle.core.payloads import task as task_facts
from passerelle.core.principal import Principal
from passerelle.core.task.folds.changes import (
    Folds,
    change_attempt,
    end_preparation,
    merge_progress,
    set_run_status,
    set_status,
    take_step,
)
from passerelle.core.task.record import CHUNKS, Progress, QueuedAttempt, TaskRecord
from passerelle.core.task.status import HELD, TERMINAL, Phase, Status
from passerelle.core.wire.record import change
from passerelle.core.wire.times import parse_ms

if TYPE_CHECKING:
    from passerelle.core.events import Event
    from passerelle.core.wire.json import JsonObject


UPDATED: Final = frozenset(
    {
        "title",
        "objective",
        "priority",
        "assignee",
        "owner",
        "constraints",
        "profile",
        "acceptance",
        "metadata",
    }
)
"""Members that ``task.updated`` may change; it names no others (CMD-5)."""


def _accepted(state: TaskRecord, _: task_facts.TaskAccepted, event: Event) -> TaskRecord:
    return set_status(state, event, Status.ACCEPTED)


def _queued(state: TaskRecord, payload: task_facts.TaskQueued, event: Event) -> TaskRecord:
    if payload.attempt is None or payload.cause is None:
        return set_status(state, event, Status.QUEUED, status_reason=payload.reason)
    queued = QueuedAttempt(
        queue=payload.queue,
        cause=payload.cause,
        since=state.queued.since if state.queued is not None else event.timestamp,
        attempt=payload.attempt,
        send_options=payload.send_options,
        position=payload.position,
        promoted_ms=payload.promoted_ms,
        until=payload.until,
        unpaid=payload.unpaid,
    )
    # Queued again with a new reset time, it has been waiting all along.
    waits_on = payload.cause == "quota" and state.status is Status.WAITING_RESOURCE
    return set_status(
        state,
        event,
        Status.WAITING_RESOURCE if waits_on else Status.QUEUED,
        status_reason=payload.reason,
        queued=queued,
        assignee=payload.attempt.worker.peer,
        retry_at=None,
        current_run_id=None,
    )


def _started(state: TaskRecord, _: task_facts.TaskStarted, event: Event) -> TaskRecord:
    return change(state, started_at=state.started_at or event.timestamp)


def _updated(state: TaskRecord, payload: task_facts.TaskUpdated, event: Event) -> TaskRecord:
    del event
    if payload.rolled_back is not None:
        state = change(state, rolled_back=payload.rolled_back)
    known = {
        name: values["new"]
        for name, values in payload.changed.items()
        if name in UPDATED and "new" in values
    }
    if "acceptance" in known:
        acceptance = tuple(cast("list[JsonObject]", known.pop("acceptance")))
        state = change(state, acceptance=acceptance)
    if "owner" in known:
        owner = Principal(str(known.pop("owner")), state.scope.tenant)
        scope = change(state.scope, principal=owner.id)
        state = change(state, owner=owner.key, scope=scope)
    return change(state, **known)


def _progressed(state: TaskRecord, payload: task_facts.TaskProgress, event: Event) -> TaskRecord:
    state = merge_progress(
        state,
        phase=payload.phase,
        percent=payload.percent,
        step=payload.step,
        summary=payload.summary,
        counters={**state.progress.counters, **payload.counters} if payload.counters else None,
        checklist=payload.checklist or None,
        outputs=payload.outputs,
    )
    if payload.delivery is not None and payload.consumer is not None:
        delivery = {**state.delivery, payload.consumer: payload.delivery}
        state = change(state, delivery=delivery)
    if payload.coverage is not None:
        state = change(state, coverage=payload.coverage)
    if payload.native_status is not None or event.fact.scope.step_id is not None:
        flows: dict[str, Any] = {"streaming": True} if CHUNKS in payload.counters else {}
        state = take_step(state, event, payload.native_status, **flows)
    if payload.silent_since is not None:
        beat = {"last_seen_at": event.timestamp, "silent_since": payload.silent_since}
        state = change_attempt(state, event, **beat)
    if payload.status is not None:
        state = state if payload.status is Status.PREPARING else end_preparation(state)
        state = set_run_status(state, event, payload.status)
        state = set_status(state, event, payload.status, status_reason=None)
    return state


def _waiting(state: TaskRecord, payload: task_facts.TaskWaiting, event: Event) -> TaskRecord:
    state = take_step(state, event, payload.native_status)
    state = merge_progress(set_run_status(state, event, payload.status), phase=Phase.WAITING)
    if payload.retry_at is not None:
        state = change_attempt(
            state,
            event,
            send_after=payload.retry_at,
            pending_message_id=None,
        )
    kept: dict[str, Any] = {
        "send_options": payload.send_options,
        "updated_input": payload.updated_input,
    }
    changes: dict[str, Any] = {name: one for name, one in kept.items() if one is not None}
    if payload.retry_at is not None:
        changes["send_options"] = payload.send_options
    if changes:
        state = change_attempt(state, event, **changes)
    return set_status(state, event, payload.status, status_reason=payload.reason)


def _blocked(state: TaskRecord, payload: task_facts.TaskBlocked, event: Event) -> TaskRecord:
    return _hold(state, event, Status.BLOCKED, payload.reason)


def _paused(state: TaskRecord, payload: task_facts.TaskPaused, event: Event) -> TaskRecord:
    return _hold(state, event, Status.PAUSED, payload.reason)


def _hold(state: TaskRecord, event: Event, status: Status, reason: str | None) -> TaskRecord:
    state = _count_held(state, event)
    before = state.held_from if state.status in HELD else state.status
    return set_status(state, event, status, status_reason=reason, held_from=before)


def _count_held(state: TaskRecord, event: Event) -> TaskRecord:
    """Adds the time in the pause or block to the run's held time, which stops its clock."""
    if state.status not in HELD or state.run is None:
        return state
    held_ms = parse_ms(event.timestamp) - parse_ms(state.status_at)
    return change_attempt(state, event, held_ms=state.run.held_ms + max(held_ms, 0))


def _resumed(state: TaskRecord, payload: task_facts.TaskResumed, event: Event) -> TaskRecord:
    status = payload.status or Status.RUNNING
    state = _count_held(state, event)
    state = set_run_status(take_step(state, event, payload.native_status), event, status)
    if status is Status.RUNNING:
        state = merge_progress(state, phase=Phase.WORKING)
    return set_status(state, event, status, status_reason=None, held_from=None)


def _retrying(state: TaskRecord, payload: task_facts.TaskRetrying, event: Event) -> TaskRecord:
    changes: dict[str, Any] = {"assignee": payload.peer} if payload.peer is not None else {}
    if state.status in TERMINAL:
        state = _expose_again(state, payload.exposure or state.exposure, event)
    return set_status(
        state,
        event,
        Status.RETRYING,
        status_reason=payload.reason,
        current_run_id=None,
        asked_by=payload.actor,
        retry_at=payload.next_at,
        **changes,
    )


def _expose_again(state: TaskRecord, exposure: int, event: Event) -> TaskRecord:
    """A retry after the end: what callers saw of the end stays under the earlier facade id."""
    fresh = change(
        state,
        ended_at=None,
        last_error=None,
        rejected=False,
        delivery={},
        cancel_requested_by=None,
        cancel_source=None,
        progress=Progress(),
    )
    if exposure == state.exposure:
        return fresh
    return change(
        fresh,
        exposure=exposure,
        exposed_from=event.sequence,
        shown=False,
        generation=0,
        shown_from=0,
        shown_to=0,
    )


def _cancel_requested(
    state: TaskRecord, payload: task_facts.TaskCancelRequested, event: Event
) -> TaskRecord:
    state = set_run_status(state, event, Status.CANCELLING)
    return set_status(
        state,
        event,
        Status.CANCELLING,
        status_reason=payload.reason,
        cancel_requested_by=payload.actor,
        cancel_source=payload.source,
    )


def _cancelled(state: TaskRecord, payload: task_facts.TaskCancelled, event: Event) -> TaskRecord:
    return set_status(state, event, Status.CANCELLED, status_reason=f"by {payload.source}")


def _timed_out(state: TaskRecord, payload: task_facts.TaskTimedOut, event: Event) -> TaskRecord:
    return set_status(state, event, Status.TIMED_OUT, status_reason=f"{payload.limit} limit")


def _failed(state: TaskRecord, payload: task_facts.TaskFailed, event: Event) -> TaskRecord:
    return set_status(
        state,
        event,
        Status.FAILED,
        last_error=payload.error,
        status_reason=payload.error.code,
        rejected=payload.rejected,
    )


def _lost(state: TaskRecord, payload: task_facts.TaskLost, event: Event) -> TaskRecord:
    state = set_run_status(state, event, Status.LOST)
    return set_status(state, event, Status.LOST, status_reason=payload.reason)


def _completed(state: TaskRecord, payload: task_facts.TaskCompleted, event: Event) -> TaskRecord:
    is_message = payload.answer == "message" and state.family == "delegation"
    family = "message" if is_message else state.family
    return set_status(state, event, Status.COMPLETED, status_reason=None, family=family)


def _archived(state: TaskRecord, _: task_facts.TaskArchived, event: Event) -> TaskRecord:
    return set_status(state, event, Status.ARCHIVED)


FOLDS: Final[Folds] = {
    task_facts.TaskAccepted: _accepted,
    task_facts.TaskQueued: _queued,
    task_facts.TaskStarted: _started,
    task_facts.TaskUpdated: _updated,
    task_facts.TaskProgress: _progressed,
    task_facts.TaskWaiting: _waiting,
    task_facts.TaskBlocked: _blocked,
    task_facts.TaskPaused: _paused,
    task_facts.TaskResumed: _resumed,
    task_facts.TaskRetrying: _retrying,
    task_facts.TaskCancelRequested: _cancel_requested,
    task_facts.TaskCancelled: _cancelled,
    task_facts.TaskTimedOut: _timed_out,
    task_facts.TaskFailed: _failed,
    task_facts.TaskLost: _lost,
    task_facts.TaskCompleted: _completed,
    task_facts.TaskArchived: _archived,
}
