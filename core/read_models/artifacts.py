"""What a task produced and consumed, with every version that its facts tell of (SNAP-7, TR-18)."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import field
from typing import Literal

from passerelle.core.events import Event
from passerelle.core.payloads.run import COPY, ArtifactChanged
from passerelle.core.read_models.mark import Mark, not_applicable, unavailable
from passerelle.core.read_models.task import name_task
from passerelle.core.record import record
from passerelle.core.task_record import TaskRecord


@record
class ArtifactVersion:
    """One version by reference; ``preview`` is the beginning of what was put elsewhere."""

    version: int
    run_id: str | None
    sequence: int
    at: str
    sha256: str
    size: int
    parts: int
    stored: bool
    blob: str | None = None
    preview: str | None = None
    copies: tuple[str, ...] = ()
    """Of files that the agent named by address, in their order."""


@record
class ArtifactChain:
    """The versions of one artifact, the oldest first."""

    artifact_id: str
    direction: Literal["produced", "consumed"]
    versions: tuple[ArtifactVersion, ...]
    replaces: str | None = None
    """The artifact of an earlier task of the context whose version the first one here takes the place of."""
    name: str | None = None
    media_types: tuple[str, ...] = ()
    marks: dict[str, Mark] = field(default_factory=dict[str, Mark])


@record
class ArtifactSummary:
    """All artifacts of a task."""

    task_id: str
    sequence: int
    artifacts: tuple[ArtifactChain, ...]
    issues: int | None = None
    """Conditions of the task that what it has does not meet."""
    marks: dict[str, Mark] = field(default_factory=dict[str, Mark])


def list_artifacts(task: TaskRecord, events: Iterable[Event]) -> ArtifactSummary:
    """The artifacts of a record; ``events`` are those of its task that could be read."""
    chains: dict[str, list[ArtifactVersion]] = {}
    began: dict[str, str | None] = {}
    for event in events:
        payload = event.fact.payload
        if isinstance(payload, ArtifactChanged) and event.fact.scope.task_id == task.task_id:
            began.setdefault(payload.artifact_id, payload.replaces)
            chain = chains.setdefault(payload.artifact_id, [])
            if chain and chain[-1].version == payload.version:
                del chain[-1]  # its files are here now
            chain.append(_show(event, payload))
    found: list[ArtifactChain] = []
    for artifact in task.artifacts:
        versions = tuple(chains.get(artifact.artifact_id, ()))
        replaces = began.get(artifact.artifact_id)
        marks = {"diff": not_applicable("versions are kept whole")}
        if not versions or replaces == artifact.artifact_id:
            marks["versions"] = unavailable("facts of some versions are not in the stream any more")
        found.append(
            ArtifactChain(
                artifact.artifact_id,
                artifact.direction,
                versions,
                None if replaces == artifact.artifact_id else replaces,
                artifact.name,
                artifact.media_types,
                marks,
            )
        )
    issues = len(task.coverage.unmet) if task.coverage else None
    return ArtifactSummary(name_task(task), task.last, tuple(found), issues, _mark(task))


def _mark(task: TaskRecord) -> dict[str, Mark]:
    marks: dict[str, Mark] = {}
    more = task.artifact_count - len(task.artifacts)
    if not task.artifacts:
        marks["artifacts"] = not_applicable("the task has recorded no artifact")
    elif more:
        marks["artifacts"] = unavailable(f"{more} more are not named in the record")
    if task.coverage is None:
        wanted = "nothing has been judged yet" if task.acceptance else "the task has no conditions"
        marks["issues"] = not_applicable(wanted)
    return marks


def _show(event: Event, changed: ArtifactChanged) -> ArtifactVersion:
    ref = event.fact.refs.get("artifact")
    return ArtifactVersion(
        version=changed.version,
        run_id=event.fact.scope.run_id,
        sequence=event.sequence,
        at=event.timestamp,
        sha256=changed.sha256,
        size=changed.size,
        parts=changed.parts,
        stored=changed.stored,
        blob=ref.blob if ref else None,
        preview=ref.preview if ref else None,
        copies=tuple(
            copy.blob or "" for name, copy in event.fact.refs.items() if name.startswith(COPY)
        ),
    )
