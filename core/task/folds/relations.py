"""The relations of a task: edges, artifacts, approvals, turns."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from passerelle.core.evidence.record import KEPT_BUNDLES
from passerelle.core.payloads import task as task_facts
from passerelle.core.payloads.approval import ActionRequired, ActionResolved
from passerelle.core.payloads.conversation import TurnCompleted, TurnFailed, TurnSubmitted
from passerelle.core.payloads.history import EvidenceChanged
from passerelle.core.payloads.run import ArtifactChanged
from passerelle.core.task.folds.changes import Folds, take_step
from passerelle.core.task.record import KEPT_ARTIFACTS, ArtifactRef, Edge, TaskRecord
from passerelle.core.wire.record import change

if TYPE_CHECKING:
    from passerelle.core.events import Event


_KEPT_OCCURRENCES: Final = 32
"""Remembered questions of an agent; an older one cannot recur in the pause that is open now."""


def _delegated(state: TaskRecord, payload: task_facts.TaskDelegated, event: Event) -> TaskRecord:
    """The fact is the edge: to a context at an agent its kind differs from one to a task."""
    kind = "spawned_subagent" if payload.target_kind == "subagent" else "child"
    edge = Edge(
        edge_id=payload.target,
        kind=kind,
        target=payload.target,
        status="open",
        created_at=event.timestamp,
        updated_at=event.timestamp,
        items=payload.items,
    )
    return _link(state, edge, find_edge(state, payload.target))


def _dependency(
    state: TaskRecord, payload: task_facts.TaskDependencyUpdated, event: Event
) -> TaskRecord:
    known = find_edge(state, payload.edge_id)
    edge = Edge(
        edge_id=payload.edge_id,
        kind=payload.kind,
        target=payload.target,
        status=payload.status,
        created_at=known.created_at if known else event.timestamp,
        updated_at=event.timestamp,
        reason=payload.reason,
        items=known.items if known else None,
    )
    return _link(state, edge, known)


def find_edge(state: TaskRecord, edge_id: str) -> Edge | None:
    """An edge of a task by its id, removed ones included; None if there is none."""
    return next((edge for edge in state.relationships if edge.edge_id == edge_id), None)


def _link(state: TaskRecord, edge: Edge, known: Edge | None) -> TaskRecord:
    """Moves a changed edge to the end, since edge fields are appended in order (``core/task/edges.py``)."""
    others = state.relationships
    if known is not None:
        others = tuple(one for one in others if one is not known)
    return change(state, relationships=(*others, edge))


def name_artifact(payload: ArtifactChanged, event: Event) -> ArtifactRef:
    """The record's entry for the artifact."""
    ref = event.fact.refs.get("artifact")
    return ArtifactRef(
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


def _artifact(state: TaskRecord, payload: ArtifactChanged, event: Event) -> TaskRecord:
    artifact = name_artifact(payload, event)
    state = _keep(state, artifact, payload, event)
    return take_step(state, event, None, streaming=None)


def _keep(
    state: TaskRecord, artifact: ArtifactRef, payload: ArtifactChanged, event: Event
) -> TaskRecord:
    """Adds the artifact if it is among the first; the others are only counted, and are in the events."""
    others = tuple(known for known in state.artifacts if known.artifact_id != artifact.artifact_id)
    if len(others) < len(state.artifacts):
        return _link_artifact(change(state, artifacts=(*others, artifact)), artifact, event)
    awaited = payload.awaited or 0
    # An artifact that was awaited until now is already counted.
    is_new = artifact.replaces != artifact.artifact_id and awaited >= 0
    count = state.artifact_count + is_new
    if len(others) >= KEPT_ARTIFACTS:
        still = max(0, (state.awaited or 0) + awaited)
        state = change(state, artifact_count=count, awaited=still or None)
        return _link_artifact(state, artifact, event) if payload.linked else state
    state = change(state, artifacts=(*others, artifact), artifact_count=count)
    return _link_artifact(state, artifact, event)


def _link_artifact(state: TaskRecord, artifact: ArtifactRef, event: Event) -> TaskRecord:
    """The edge from a task to a produced or consumed artifact, by run; one per artifact (GR-7, A2A-10)."""
    kind = f"{artifact.direction}_artifact"
    edge_id = f"{artifact.run_id}:{artifact.artifact_id}"
    known = find_edge(state, edge_id)
    created_at = known.created_at if known else event.timestamp
    edge = Edge(edge_id, kind, artifact.artifact_id, "satisfied", created_at, event.timestamp)
    return _link(state, edge, known)


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


def _evidence(state: TaskRecord, payload: EvidenceChanged, event: Event) -> TaskRecord:
    del event
    others = tuple(one for one in state.evidence_refs if one != payload.evidence_id)
    return change(state, evidence_refs=(*others, payload.evidence_id)[-KEPT_BUNDLES:])


FOLDS: Final[Folds] = {
    task_facts.TaskDelegated: _delegated,
    task_facts.TaskDependencyUpdated: _dependency,
    ArtifactChanged: _artifact,
    ActionRequired: _action_required,
    ActionResolved: _action_resolved,
    TurnSubmitted: _turn_submitted,
    TurnCompleted: _turn_ended,
    TurnFailed: _turn_ended,
    EvidenceChanged: _evidence,
}
