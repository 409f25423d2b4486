"""The fold of a task: facts in, record out. Total: it never raises; what it cannot read makes the record stale."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, cast

from passerelle.core.events import OpaquePayload, VendorPayload
from passerelle.core.facts import Ref
from passerelle.core.payloads import task as say
from passerelle.core.payloads.approval import ActionRequired, ActionResolved
from passerelle.core.payloads.conversation import TurnCompleted, TurnFailed, TurnSubmitted
from passerelle.core.payloads.run import ArtifactChanged, ModelRequested, RunStatus
from passerelle.core.record import change, fill
from passerelle.core.status import HELD, TERMINAL, Phase, Status
from passerelle.core.task_record import (
    CHUNKS,
    KEPT_ARTIFACTS,
    SCHEMA,
    WITHHELD,
    ArtifactRef,
    Attempt,
    Edge,
    Progress,
    TaskRecord,
    TaskScope,
)
from passerelle.core.times import parse_ms

if TYPE_CHECKING:
    from collections.abc import Callable

    from passerelle.core.events import Event
    from passerelle.core.json import JsonObject

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
"""What describes a task and may be changed; ``task.updated`` names no other member (CMD-5)."""
_KEPT_OCCURRENCES: Final = 32
"""Questions of a peer that are remembered; an older one cannot be seen again in the pause that is open now."""


def folds_task(event: Event) -> bool:
    """Whether the event changes the record of the task that its scope names."""
    return event.fact.scope.task_id is not None and type(event.fact.payload) in FOLDED


def evolve(state: TaskRecord | None, event: Event) -> TaskRecord | None:
    """The record after an event; unchanged when it is of another task, contained already, or says nothing here."""
    payload = event.fact.payload
    if isinstance(payload, say.TaskCreated):
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
    return _close(change(state) if folded is state else folded, event)


def _create(payload: say.TaskCreated, event: Event) -> TaskRecord:
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
        scope=TaskScope(payload.tenant, payload.requested_by, payload.context_id),
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


def _close(fresh: TaskRecord, event: Event) -> TaskRecord:
    """What every folded event leaves behind: its place and time, and what callers have seen with it."""
    payload = event.fact.payload
    bare = isinstance(payload, say.TaskCompleted) and payload.answer == "message"
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


def _set(state: TaskRecord, event: Event, status: Status, **changes: Any) -> TaskRecord:  # noqa: ANN401  fields of the record
    if status is not state.status:
        changes["status_at"] = event.timestamp
    if status in TERMINAL:
        changes.setdefault("ended_at", event.timestamp)
        changes.setdefault("open_actions", ())
        changes |= {"current_run_id": None, "withheld": None, "retry_at": None}
    return change(state, status=status, **changes)


def _attempt(state: TaskRecord, event: Event, **changes: Any) -> TaskRecord:  # noqa: ANN401  fields of the attempt
    """Changes the attempt that the event is about. Only a frame of the peer is a sign that it lives."""
    run_id, seen = event.fact.scope.run_id, event.fact.scope.step_id is not None
    if seen:
        changes |= {"last_seen_at": event.timestamp, "silent_since": None}
    attempts = tuple(
        change(attempt, **changes) if attempt.run_id == run_id else attempt
        for attempt in state.attempts
    )
    return change(state, attempts=attempts)


def _step(state: TaskRecord, event: Event, native: str | None, **changes: Any) -> TaskRecord:  # noqa: ANN401  fields of the attempt
    """One frame of the peer: an answer, so the send before it is known to have arrived."""
    run = state.run
    if run is None or run.run_id != event.fact.scope.run_id or event.fact.scope.step_id is None:
        return state
    if native is not None:
        changes["native_status"] = native
    return _attempt(state, event, steps=run.steps + 1, pending_message_id=None, **changes)


def _progress(state: TaskRecord, **changes: Any) -> TaskRecord:  # noqa: ANN401  fields of the progress
    known = {name: value for name, value in changes.items() if value is not None}
    return change(state, progress=change(state.progress, **known)) if known else state


def _accepted(state: TaskRecord, _: say.TaskAccepted, event: Event) -> TaskRecord:
    return _set(state, event, Status.ACCEPTED)


def _queued(state: TaskRecord, payload: say.TaskQueued, event: Event) -> TaskRecord:
    return _set(state, event, Status.QUEUED, status_reason=payload.reason)


def _started(state: TaskRecord, _: say.TaskStarted, event: Event) -> TaskRecord:
    return change(state, started_at=state.started_at or event.timestamp)


def _updated(state: TaskRecord, payload: say.TaskUpdated, event: Event) -> TaskRecord:
    del event
    known = {
        name: values["new"]
        for name, values in payload.changed.items()
        if name in UPDATED and "new" in values
    }
    if "acceptance" in known:
        acceptance = tuple(cast("list[JsonObject]", known.pop("acceptance")))
        state = change(state, acceptance=acceptance)
    return change(state, **known)


def _progressed(state: TaskRecord, payload: say.TaskProgress, event: Event) -> TaskRecord:
    state = _progress(
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
        state = _step(state, event, payload.native_status, **flows)
    if payload.silent_since is not None:
        beat = {"last_seen_at": event.timestamp, "silent_since": payload.silent_since}
        state = _attempt(state, event, **beat)
    if payload.status is not None:
        state = _run_status(state, event, payload.status)
        state = _set(state, event, payload.status, status_reason=None)
    return state


def _run_status(state: TaskRecord, event: Event, status: Status) -> TaskRecord:
    return _attempt(state, event, status=status) if state.run else state


def _waiting(state: TaskRecord, payload: say.TaskWaiting, event: Event) -> TaskRecord:
    state = _step(state, event, payload.native_status)
    state = _progress(_run_status(state, event, payload.status), phase=Phase.WAITING)
    if payload.retry_at is not None:
        state = _attempt(
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
        state = _attempt(state, event, **changes)
    return _set(state, event, payload.status, status_reason=payload.reason)


def _blocked(state: TaskRecord, payload: say.TaskBlocked, event: Event) -> TaskRecord:
    return _hold(state, event, Status.BLOCKED, payload.reason)


def _paused(state: TaskRecord, payload: say.TaskPaused, event: Event) -> TaskRecord:
    return _hold(state, event, Status.PAUSED, payload.reason)


def _hold(state: TaskRecord, event: Event, status: Status, reason: str | None) -> TaskRecord:
    before = state.held_from if state.status in HELD else state.status
    return _set(state, event, status, status_reason=reason, held_from=before)


def _resumed(state: TaskRecord, payload: say.TaskResumed, event: Event) -> TaskRecord:
    status = payload.status or Status.RUNNING
    if state.status in HELD and state.run is not None:
        paused_ms = parse_ms(event.timestamp) - parse_ms(state.status_at)
        state = _attempt(state, event, held_ms=state.run.held_ms + max(paused_ms, 0))
    state = _run_status(_step(state, event, payload.native_status), event, status)
    if status is Status.RUNNING:
        state = _progress(state, phase=Phase.WORKING)
    return _set(state, event, status, status_reason=None, held_from=None)


def _retrying(state: TaskRecord, payload: say.TaskRetrying, event: Event) -> TaskRecord:
    changes: dict[str, Any] = {"assignee": payload.peer} if payload.peer is not None else {}
    if state.status in TERMINAL:
        state = _expose_again(state, payload.exposure or state.exposure, event)
    return _set(
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
    """A task that had ended lives again; what callers saw of its end stays as it was, under the earlier id."""
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
    state: TaskRecord, payload: say.TaskCancelRequested, event: Event
) -> TaskRecord:
    state = _run_status(state, event, Status.CANCELLING)
    return _set(
        state,
        event,
        Status.CANCELLING,
        status_reason=payload.reason,
        cancel_requested_by=payload.actor,
        cancel_source=payload.source,
    )


def _cancelled(state: TaskRecord, payload: say.TaskCancelled, event: Event) -> TaskRecord:
    return _set(state, event, Status.CANCELLED, status_reason=f"by {payload.source}")


def _timed_out(state: TaskRecord, payload: say.TaskTimedOut, event: Event) -> TaskRecord:
    return _set(state, event, Status.TIMED_OUT, status_reason=f"{payload.limit} limit")


def _failed(state: TaskRecord, payload: say.TaskFailed, event: Event) -> TaskRecord:
    return _set(
        state,
        event,
        Status.FAILED,
        last_error=payload.error,
        status_reason=payload.error.code,
        rejected=payload.rejected,
    )


def _lost(state: TaskRecord, payload: say.TaskLost, event: Event) -> TaskRecord:
    state = _run_status(state, event, Status.LOST)
    return _set(state, event, Status.LOST, status_reason=payload.reason)


def _completed(state: TaskRecord, payload: say.TaskCompleted, event: Event) -> TaskRecord:
    family = "message" if payload.answer == "message" else state.family
    return _set(state, event, Status.COMPLETED, status_reason=None, family=family)


def _archived(state: TaskRecord, _: say.TaskArchived, event: Event) -> TaskRecord:
    return _set(state, event, Status.ARCHIVED)


def _delegated(state: TaskRecord, payload: say.TaskDelegated, event: Event) -> TaskRecord:
    edge = Edge(payload.target, "child", payload.target, "open", event.timestamp, event.timestamp)
    return _link(state, edge)


def _dependency(state: TaskRecord, payload: say.TaskDependencyUpdated, event: Event) -> TaskRecord:
    known = next((edge for edge in state.relationships if edge.edge_id == payload.edge_id), None)
    edge = Edge(
        edge_id=payload.edge_id,
        kind=payload.kind,
        target=payload.target,
        status=payload.status,
        created_at=known.created_at if known else event.timestamp,
        updated_at=event.timestamp,
        reason=payload.reason,
    )
    return _link(state, edge)


def _link(state: TaskRecord, edge: Edge) -> TaskRecord:
    others = tuple(known for known in state.relationships if known.edge_id != edge.edge_id)
    return change(state, relationships=(*others, edge))


def _attempt_started(
    state: TaskRecord, payload: say.TaskAttemptStarted, event: Event
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
    return _set(_progress(state, phase=Phase.WORKING), event, Status.RUNNING, status_reason=None)


def _attempt_completed(
    state: TaskRecord, payload: say.TaskAttemptCompleted, event: Event
) -> TaskRecord:
    return _attempt(
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


def _attempt_failed(state: TaskRecord, payload: say.TaskAttemptFailed, event: Event) -> TaskRecord:
    changes: dict[str, Any] = (
        {} if payload.native_status is None else {"native_status": payload.native_status}
    )
    return _attempt(
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
    state = _step(state, event, payload.native_status)
    if changes and state.current_run_id == event.fact.scope.run_id:
        # What the peer calls things, and how it is followed, is known with or without a frame of it.
        state = _attempt(state, event, **changes)
    withheld = event.fact.refs.get(WITHHELD)
    if withheld is not None:
        state = change(state, withheld=withheld.blob)
    return _progress(state, phase=payload.phase, summary=payload.text)


def _requested(state: TaskRecord, payload: ModelRequested, event: Event) -> TaskRecord:
    changed = payload.updated_input
    changes: dict[str, Any] = {} if changed is None else {"updated_input": changed}
    return _attempt(
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


def _artifact(state: TaskRecord, payload: ArtifactChanged, event: Event) -> TaskRecord:
    ref = event.fact.refs.get("artifact")
    artifact = ArtifactRef(
        artifact_id=payload.artifact_id,
        name_at_peer=payload.name_at_peer,
        run_id=event.fact.scope.run_id or "",
        version=payload.version,
        sha256=payload.sha256,
        size=payload.size,
        parts=payload.parts,
        last=event.sequence,
        name=payload.name,
        media_types=payload.media_types,
        direction=payload.direction,
        stored=payload.stored,
        blob=ref.blob if ref else None,
        replaces=payload.replaces,
    )
    return _step(_keep(state, artifact, event), event, None, streaming=None)


def _keep(state: TaskRecord, artifact: ArtifactRef, event: Event) -> TaskRecord:
    """Names the artifact, if it is one of the first; the others are counted, and stand in the events."""
    others = tuple(known for known in state.artifacts if known.artifact_id != artifact.artifact_id)
    if len(others) < len(state.artifacts):
        return _link_artifact(change(state, artifacts=(*others, artifact)), artifact, event)
    count = state.artifact_count + (artifact.replaces != artifact.artifact_id)
    if len(others) >= KEPT_ARTIFACTS:
        return change(state, artifact_count=count)
    state = change(state, artifacts=(*others, artifact), artifact_count=count)
    return _link_artifact(state, artifact, event)


def _link_artifact(state: TaskRecord, artifact: ArtifactRef, event: Event) -> TaskRecord:
    """The edge from a task to what it produced or consumed, by the run; one for each artifact (GR-7, A2A-10)."""
    kind = f"{artifact.direction}_artifact"
    edge_id = f"{artifact.run_id}:{artifact.artifact_id}"
    known = next((edge for edge in state.relationships if edge.edge_id == edge_id), None)
    created_at = known.created_at if known else event.timestamp
    edge = Edge(edge_id, kind, artifact.artifact_id, "satisfied", created_at, event.timestamp)
    return _link(state, edge)


def _action_required(state: TaskRecord, payload: ActionRequired, event: Event) -> TaskRecord:
    del event
    request = payload.request
    state = change(state, open_actions=(*state.open_actions, request.action_id))
    if request.remote is None:
        return state
    kept = list(state.occurrences.items())[-(_KEPT_OCCURRENCES - 1) :]
    occurrences = dict([*kept, (request.remote.occurrence, request.action_id)])
    return change(state, occurrences=occurrences)


def _action_resolved(state: TaskRecord, payload: ActionResolved, event: Event) -> TaskRecord:
    del payload
    closed = event.fact.scope.action_id
    still = tuple(action for action in state.open_actions if action != closed)
    return change(state, open_actions=still)


def _turn_submitted(state: TaskRecord, payload: TurnSubmitted, event: Event) -> TaskRecord:
    del payload
    turn_id = event.fact.scope.turn_id or ""
    return change(
        state,
        turn_id=turn_id,
        inputs=(*state.inputs, event.sequence),
        open_turns=(*state.open_turns, turn_id),
    )


def _turn_ended(state: TaskRecord, payload: TurnCompleted | TurnFailed, event: Event) -> TaskRecord:
    del payload
    ended = event.fact.scope.turn_id
    return change(state, open_turns=tuple(turn for turn in state.open_turns if turn != ended))


_FOLDS: Final[dict[type, Callable[[TaskRecord, Any, Event], TaskRecord]]] = {
    say.TaskCreated: lambda state, _payload, _event: state,
    say.TaskAccepted: _accepted,
    say.TaskQueued: _queued,
    say.TaskStarted: _started,
    say.TaskUpdated: _updated,
    say.TaskProgress: _progressed,
    say.TaskWaiting: _waiting,
    say.TaskBlocked: _blocked,
    say.TaskPaused: _paused,
    say.TaskResumed: _resumed,
    say.TaskRetrying: _retrying,
    say.TaskCancelRequested: _cancel_requested,
    say.TaskCancelled: _cancelled,
    say.TaskTimedOut: _timed_out,
    say.TaskFailed: _failed,
    say.TaskLost: _lost,
    say.TaskCompleted: _completed,
    say.TaskArchived: _archived,
    say.TaskDelegated: _delegated,
    say.TaskDependencyUpdated: _dependency,
    say.TaskAttemptStarted: _attempt_started,
    say.TaskAttemptCompleted: _attempt_completed,
    say.TaskAttemptFailed: _attempt_failed,
    RunStatus: _run_said,
    ModelRequested: _requested,
    ArtifactChanged: _artifact,
    ActionRequired: _action_required,
    ActionResolved: _action_resolved,
    TurnSubmitted: _turn_submitted,
    TurnCompleted: _turn_ended,
    TurnFailed: _turn_ended,
}
FOLDED: Final[frozenset[type]] = frozenset({*_FOLDS, OpaquePayload})
