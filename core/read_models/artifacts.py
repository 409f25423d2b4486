"""Read models of artifacts: inputs and outputs of a task, their versions, and content by reference.

``ArtifactSummary`` has the artifacts that a task produced and consumed, with every version in its facts (SNAP-7,
TR-18). ``VersionChain`` has the versions of a named artifact over the tasks of one context, each by reference (SNAP-7,
LT-17). ``OutputContent`` is the content of a reference in a fact, as readers get it (ENV-10).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import field
from typing import Literal

from passerelle.core.events import Event
from passerelle.core.payloads.run import COPY, ArtifactChanged
from passerelle.core.read_models.mark import FreshnessMark, not_applicable, unavailable
from passerelle.core.read_models.task import name_task
from passerelle.core.session.thread import ThreadRecord
from passerelle.core.task.record import TaskRecord
from passerelle.core.wire.record import record


@record
class OutputContent:
    """A part of the content, in base64, from ``offset`` on; ``size`` is that of the whole. Expired content is None."""

    sha256: str
    state: Literal["here", "expired"]
    name: str
    """The reference name in the fact: ``artifact``, ``output``, ``frame``, ``input``, or ``copy.`` and a number."""
    offset: int
    content: str | None = None
    size: int | None = None
    media_type: str | None = None
    preview: str | None = None
    url: str | None = None
    """The address that a copy was fetched from."""


@record
class ArtifactVersion:
    """One version by reference; ``preview`` is the beginning of content in the blob store."""

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
    """Copies of files that the agent named by address, in order."""


@record
class ArtifactChain:
    """The versions of one artifact, oldest first."""

    artifact_id: str
    direction: Literal["produced", "consumed"]
    versions: tuple[ArtifactVersion, ...]
    replaces: str | None = None
    """The artifact of an earlier task of the context that the first version here replaces."""
    name: str | None = None
    media_types: tuple[str, ...] = ()
    marks: dict[str, FreshnessMark] = field(default_factory=dict[str, FreshnessMark])


@record
class ArtifactSummary:
    """All artifacts of a task."""

    task_id: str
    sequence: int
    artifacts: tuple[ArtifactChain, ...]
    issues: int | None = None
    """Unmet conditions of the task."""
    marks: dict[str, FreshnessMark] = field(default_factory=dict[str, FreshnessMark])


def list_artifacts(task: TaskRecord, events: Iterable[Event]) -> ArtifactSummary:
    """The artifacts of a record; ``events`` are the readable ones of its task."""
    chains: dict[str, list[ArtifactVersion]] = {}
    began: dict[str, str | None] = {}
    for event in events:
        payload = event.fact.payload
        if isinstance(payload, ArtifactChanged) and event.fact.scope.task_id == task.task_id:
            began.setdefault(payload.artifact_id, payload.replaces)
            chain = chains.setdefault(payload.artifact_id, [])
            if chain and chain[-1].version == payload.version:
                del chain[-1]  # the later event has its files
            chain.append(_show(event, payload))
    found: list[ArtifactChain] = []
    for artifact in task.artifacts:
        versions = tuple(chains.get(artifact.artifact_id, ()))
        replaces = began.get(artifact.artifact_id)
        marks = {"diff": not_applicable("versions are kept whole")}
        if not versions or replaces == artifact.artifact_id:
            marks["versions"] = unavailable("facts of some versions are no longer in the stream")
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


def _mark(task: TaskRecord) -> dict[str, FreshnessMark]:
    marks: dict[str, FreshnessMark] = {}
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


@record
class VersionLine:
    """The last version that one task produced; earlier ones are in the model of the task's artifacts."""

    version: int
    artifact_id: str
    task_id: str
    run_id: str
    sha256: str
    size: int
    replaces: str | None = None
    blob: str | None = None
    rolled_back: Literal[True] | None = None
    """The task was rolled back; a later version may have the same number."""


@record
class VersionChain:
    """The versions of one name, oldest first. ``latest`` is the current artifact."""

    name: str
    latest: str
    versions: tuple[VersionLine, ...]


def list_versions(thread: ThreadRecord, tasks: Iterable[TaskRecord]) -> tuple[VersionChain, ...]:
    """The versions under the names that the thread remembers, last used name last."""
    found: dict[str, list[VersionLine]] = {name: [] for name in thread.artifacts}
    for task in tasks:
        for one in task.artifacts:
            if one.direction != "produced" or one.name not in found:
                continue
            found[one.name].append(
                VersionLine(
                    version=one.version,
                    artifact_id=one.artifact_id,
                    task_id=name_task(task),
                    run_id=one.run_id,
                    sha256=one.sha256,
                    size=one.size,
                    replaces=one.replaces,
                    blob=one.blob,
                    rolled_back=True if task.rolled_back is not None else None,
                )
            )
    return tuple(
        VersionChain(
            name,
            thread.artifacts[name].artifact_id,
            tuple(sorted(lines, key=lambda line: (line.version, line.artifact_id))),
        )
        for name, lines in found.items()
    )
