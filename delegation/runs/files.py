"""Files that an agent named by their address: which ones, and what a task says once they are here, or cannot be had.

Pure. An artifact with such parts is not stored until a copy of each is (I5). The part stays as the agent wrote it; the
copy is named by a reference of the artifact's fact, ``copy.0`` for its first file.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from passerelle.a2a_mapping.members import objects_at, text_at
from passerelle.core import task as tasks
from passerelle.core.batch import DueChange
from passerelle.core.events import Fact
from passerelle.core.facts import ErrorCategory, Failure, Ref
from passerelle.core.payloads.run import COPY, ArtifactChanged, OutputRedacted, OutputTruncated
from passerelle.core.payloads.task import TaskWaiting
from passerelle.core.status import Status
from passerelle.core.task_commands import ObserveArtifact, WaitFor
from passerelle.delegation.runs.artifacts import (
    bound_id,
    count_awaited,
    is_named,
    list_awaited,
    list_files,
)
from passerelle.delegation.runs.failing import Ended, end_run

if TYPE_CHECKING:
    from collections.abc import Sequence

    from passerelle.core.json import JsonObject
    from passerelle.core.task_record import ArtifactRef
    from passerelle.delegation.runs.step import Step

MOST_FILES: Final = 64
"""Of one artifact."""


@dataclass(frozen=True, slots=True)
class Copy:
    """A file that is here now. ``kept`` bytes of ``size`` are, and ``redacted`` says what was taken out."""

    url: str
    sha256: str
    media_type: str
    size: int
    kept: int
    is_cut: bool
    redacted: Sequence[tuple[str, int]] = ()

    @property
    def ref(self) -> Ref:
        """How facts name it; a query may hold the key to what the address leads to."""
        return Ref(
            blob=self.sha256,
            url=self.url.partition("?")[0],
            size=self.kept,
            media_type=self.media_type,
        )


def find_files(task: JsonObject, artifact: ArtifactRef, *, fetches: bool) -> list[str]:
    """The addresses of the files of an artifact that a record names, as far as they are copied."""
    for one in objects_at(task, "artifacts"):
        if bound_id(text_at(one, "artifactId")) == artifact.name_at_peer:
            return list_files(one, fetches=fetches)
    return []


def keep_copies(
    step: Step, artifact: ArtifactRef, copies: Sequence[Copy], keep_ms: int | None
) -> None:
    """The artifact is stored now."""
    if not _is_awaited(step, artifact):
        return
    refs = {f"{COPY}{place}": copy.ref for place, copy in enumerate(copies)}
    scope = tasks.scope_of(step.record)
    for (name, ref), copy in zip(refs.items(), copies, strict=True):
        named = {name: ref}
        if copy.is_cut:
            cut = OutputTruncated("artifact", copy.size, copy.kept)
            step.add([Fact(scope, cut, named)])
        step.add(
            [
                Fact(scope, OutputRedacted("artifact", rule, count), named)
                for rule, count in copy.redacted
            ]
        )
    if artifact.blob is not None:
        refs["artifact"] = Ref(blob=artifact.blob, size=artifact.size)
    stored = ArtifactChanged(
        artifact_id=artifact.artifact_id,
        name_at_peer=artifact.name_at_peer,
        version=artifact.version,
        sha256=artifact.sha256,
        size=artifact.size,
        parts=artifact.parts,
        media_types=artifact.media_types,
        name=artifact.name,
        replaces=artifact.replaces,
        awaited=count_awaited(step, artifact.name_at_peer, artifact, stored=True),
        linked=None if is_named(step, artifact.name_at_peer) else True,
    )
    step.catalogued[artifact.name_at_peer] = replace(artifact, stored=True)
    step.add(step.tell(ObserveArtifact(stored, step.sight.mint("step"), refs)))
    if keep_ms is not None and copies:
        at_ms = step.decision.now_ms + keep_ms
        step.due.append(DueChange(f"output:{step.record.task_id}", at_ms))


def wait_for_file(step: Step, artifact: ArtifactRef, reason: str) -> None:
    """The file cannot be had now: the task waits, until it can be or the time of the run is over."""
    if not _is_awaited(step, artifact) or step.record.status is Status.WAITING_RESOURCE:
        return
    waiting = TaskWaiting(
        waiting_for="resource",
        status=Status.WAITING_RESOURCE,
        reason=f"a file of artifact {artifact.artifact_id} cannot be fetched: {reason}",
    )
    step.add(step.tell(WaitFor(waiting)))


def refuse_file(step: Step, artifact: ArtifactRef, reason: str) -> None:
    """The file will never be had: what was brought is not what was said."""
    if not _is_awaited(step, artifact):
        return
    failure = Failure(
        code="artifact_unavailable",
        category=ErrorCategory.PEER,
        message=f"a file of artifact {artifact.artifact_id} cannot be fetched: {reason}",
        retryable=True,
        source=step.sight.peer,
        native=step.record.attempts[-1].native_status,
    )
    end_run(step, Ended(failure, native=failure.native))


def _is_awaited(step: Step, artifact: ArtifactRef) -> bool:
    """Whether nobody has changed what was being done: another version, a wish to cancel, a pause."""
    return (
        step.record.withheld is not None
        and step.record.status is not Status.CANCELLING
        and artifact in list_awaited(step.record, step.sight.catalogue)
    )
