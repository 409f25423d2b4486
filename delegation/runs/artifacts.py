"""Artifacts of a peer become facts: each once per version, when it is whole and stored (EVC-14, A2A-10). Pure.

A record names the first artifacts of its task and counts the others. The catalogue of the ``RunContext`` has the rest:
the driver fills it as it stores them, and a driver that takes the run over reads it from events.

An artifact with files that the agent named by address is not stored until a copy of each file is (I5). The part stays
as the agent wrote it; a reference of the artifact's fact names the copy, ``copy.0`` for its first file.
"""

from __future__ import annotations

import hashlib
from dataclasses import replace
from typing import TYPE_CHECKING, Final, Literal

import orjson

from passerelle.a2a_mapping.long_task import measure_artifact, preview_parts, write_artifact
from passerelle.a2a_mapping.members import objects_at, text_at
from passerelle.core.batch import DueChange
from passerelle.core.errors import TooLarge
from passerelle.core.events import Fact
from passerelle.core.facts import ErrorCategory, ErrorDetail, Ref
from passerelle.core.frozen import frozen
from passerelle.core.payloads.run import COPY, ArtifactChanged, OutputRedacted, OutputTruncated
from passerelle.core.payloads.task import TaskWaiting
from passerelle.core.ports.blobs import UPLOADED
from passerelle.core.session.thread import ThreadRecord
from passerelle.core.task import machine as tasks
from passerelle.core.task.commands import ObserveArtifact, WaitFor
from passerelle.core.task.record import KEPT_ARTIFACTS, ArtifactRef
from passerelle.core.task.status import Status
from passerelle.core.wire.record import value
from passerelle.delegation.runs.draft import AnswerProgress
from passerelle.delegation.runs.failure import RunEnd, end_run
from passerelle.delegation.runs.limits import enforce
from passerelle.delegation.runs.volume import LARGE_BYTES
from passerelle.runtime.records.blob_overflow import CAP, BlobOverflow

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from passerelle.core.facts import NamedArtifact
    from passerelle.core.task.record import TaskRecord
    from passerelle.core.wire.json import JsonObject
    from passerelle.delegation.runs.draft import DecisionDraft
    from passerelle.runtime.records.blob_overflow import LongBlob

NAME_CHARS: Final = 200
"""Longest artifact name in a record: records are read and written whole."""
MOST_ARTIFACTS: Final = 10_000
"""Per task; an agent that brings more is cancelled."""
MOST_FILES: Final = 64
"""Per artifact."""


@value
class DescribedArtifact:
    """An artifact as the agent brought it; its hash and size are those of ``packed``."""

    name_at_peer: str
    packed: bytes
    sha256: str
    parts: int
    media_types: tuple[str, ...]
    name: str | None
    size: int
    ref: Ref | None = None
    """Set for an artifact that is not in memory; ``long`` writes it."""
    long: tuple[LongBlob, ...] = ()


def settle_artifacts(
    draft: DecisionDraft, artifacts: Sequence[JsonObject], answer: JsonObject
) -> bool:
    """Records the artifacts that an answer of the peer completes; False if a further append is needed.

    ``answer`` identifies the repeated call for the rest of them.

    Raises:
        TooLarge: more than :data:`MOST_ARTIFACTS`.
    """
    check_number(len(artifacts))
    place = draft.context.place
    done = place.settled if place is not None and place.answer is answer else 0
    for number in range(done, len(artifacts)):
        if draft.is_full():
            draft.more, draft.place = True, AnswerProgress(answer, number)
            return False
        draft.add(settle_artifact(draft, artifacts[number]))
    enforce(draft)
    return True


def check_number(number: int) -> None:
    """Rejects a task with too many artifacts.

    Raises:
        TooLarge: there are more than :data:`MOST_ARTIFACTS`.
    """
    if number > MOST_ARTIFACTS:
        raise TooLarge("the list of artifacts of one task", MOST_ARTIFACTS)


def settle_artifact(draft: DecisionDraft, artifact: JsonObject) -> list[Fact]:
    """The one fact that an artifact is whole and stored; none if nothing is new."""
    parts = objects_at(artifact, "parts")
    is_long = draft.is_large and measure_artifact(artifact) > LARGE_BYTES
    one = describe_long(artifact, parts) if is_long else describe(artifact, parts)
    known = find_known(draft, one.name_at_peer)
    if known is not None and known.sha256 == one.sha256:
        return []
    standing = _find_standing(draft, one.name)
    earlier = standing if standing and standing.task_id != draft.record.task_id else None
    replaced = known or earlier
    stored = not list_files(artifact, fetches=draft.context.fetches)
    changed = ArtifactChanged(
        artifact_id=known.artifact_id if known else draft.context.mint("art"),
        name_at_peer=one.name_at_peer,
        version=max(each.version for each in (replaced, standing) if each) + 1 if replaced else 1,
        sha256=one.sha256,
        size=one.size,
        parts=one.parts,
        media_types=one.media_types,
        name=one.name,
        stored=stored,
        replaces=replaced.artifact_id if replaced else None,
        awaited=count_awaited(draft, one.name_at_peer, known, stored=stored),
        linked=None if is_named(draft, one.name_at_peer) else True,
    )
    refs: dict[str, Ref] = {}
    if one.ref is not None:
        draft.spill.long += one.long
        refs["artifact"] = one.ref
    elif one.size > CAP:
        refs["artifact"] = draft.spill.keep(one.packed, preview_parts(parts))
    blob = refs["artifact"].blob if refs else None
    run_id = draft.record.attempts[-1].run_id if draft.record.attempts else ""
    draft.catalogued[one.name_at_peer] = catalogue(changed, run_id, blob)
    return draft.decide(ObserveArtifact(changed, draft.step_id, refs))


def list_files(artifact: JsonObject, *, fetches: bool) -> list[str]:
    """The addresses of an artifact's files that are copied: all of them, or only uploads of its agent.

    A ``data:`` URL contains its content and is not an address.
    """
    urls = (text_at(part, "url") for part in objects_at(artifact, "parts"))
    return [
        url
        for url in urls
        if url and not url.startswith("data:") and (fetches or url.startswith(UPLOADED))
    ]


def is_named(draft: DecisionDraft, name: str) -> bool:
    """Whether the record names the artifact that the peer calls ``name``, or will; it only counts the others."""
    named = draft.record.artifacts
    return len(named) < KEPT_ARTIFACTS or any(one.name_at_peer == name for one in named)


def count_awaited(
    draft: DecisionDraft, name: str, known: ArtifactRef | None, *, stored: bool
) -> Literal[1, -1] | None:
    """The change of the record's count of artifacts that it does not name and the task waits for (I5)."""
    waited = known is not None and not known.stored
    if is_named(draft, name) or waited is not stored:
        return None
    return -1 if stored else 1


def catalogue(changed: ArtifactChanged, run_id: str, blob: str | None) -> ArtifactRef:
    """The catalogue entry of an artifact that is being recorded."""
    return ArtifactRef(
        artifact_id=changed.artifact_id,
        name_at_peer=changed.name_at_peer,
        run_id=run_id,
        version=changed.version,
        sha256=changed.sha256,
        size=changed.size,
        parts=changed.parts,
        last=0,
        name=changed.name,
        media_types=changed.media_types,
        direction=changed.direction,
        stored=changed.stored,
        blob=blob,
        replaces=changed.replaces,
    )


def list_awaited(record: TaskRecord, known: Mapping[str, ArtifactRef]) -> list[ArtifactRef]:
    """The artifacts that are not stored yet: those that the record names, and the others of the catalogue."""
    waiting = [one for one in record.artifacts if not one.stored]
    if not record.awaited:
        return waiting
    named = {one.name_at_peer for one in record.artifacts}
    return waiting + [one for name, one in known.items() if name not in named and not one.stored]


def bound_id(name: str) -> str:
    """The artifact's id in records: the agent's own id, or a hash of it if it is too long for an id."""
    if len(name) <= NAME_CHARS:
        return name
    return f"sha256:{hashlib.sha256(name.encode()).hexdigest()}"


def describe(artifact: JsonObject, parts: Sequence[JsonObject]) -> DescribedArtifact:
    """The record of an artifact without its ids; ``parts`` are its parts."""
    packed = orjson.dumps(artifact)
    return DescribedArtifact(
        bound_id(text_at(artifact, "artifactId")),
        packed,
        hashlib.sha256(packed).hexdigest(),
        len(parts),
        _list_types(parts),
        _find_name(artifact),
        len(packed),
    )


def describe_long(artifact: JsonObject, parts: list[JsonObject]) -> DescribedArtifact:
    """The record of a large artifact: its bytes are never in memory together."""
    spill = BlobOverflow()
    ref = spill.keep_long(lambda: write_artifact(artifact), preview_parts(parts))
    return DescribedArtifact(
        bound_id(text_at(artifact, "artifactId")),
        b"",
        ref.blob or "",
        len(parts),
        _list_types(parts),
        _find_name(artifact),
        ref.size or 0,
        ref,
        tuple(spill.long),
    )


def _list_types(parts: Sequence[JsonObject]) -> tuple[str, ...]:
    types: set[str] = set()
    for part in parts:
        if "mediaType" in part and (media_type := text_at(part, "mediaType")):
            types.add(media_type)
    return tuple(sorted(types))


def _find_name(artifact: JsonObject) -> str | None:
    return text_at(artifact, "name")[:NAME_CHARS] or None if "name" in artifact else None


def _find_standing(draft: DecisionDraft, title: str | None) -> NamedArtifact | None:
    """The current version of the artifact of this name in the context, whichever task produced it (LT-17)."""
    thread = draft.decision.state(draft.context.thread)
    if title is None or not isinstance(thread, ThreadRecord):
        return None
    return thread.artifacts.get(title) or draft.context.standing.get(title)


def find_known(draft: DecisionDraft, name: str) -> ArtifactRef | None:
    """What is known of the artifact that the peer calls ``name``."""
    fresh = draft.catalogued.get(name)
    if fresh is not None:
        return fresh
    for one in draft.record.artifacts:
        if one.name_at_peer == name:
            return one
    return draft.context.catalogue.get(name)


def list_all(draft: DecisionDraft) -> dict[str, Ref]:
    """A reference to the list of all artifacts, if the record names only the first of them."""
    if draft.record.artifact_count <= KEPT_ARTIFACTS:
        return {}
    named = {one.name_at_peer: one for one in draft.record.artifacts}
    known: dict[str, ArtifactRef] = {**named, **draft.context.catalogue, **draft.catalogued}
    listed = [
        {"artifactId": one.artifact_id, "version": one.version, "sha256": one.sha256}
        for one in known.values()
    ]
    return {"artifacts": draft.spill.keep(orjson.dumps(listed))}


@frozen
class FileCopy:
    """A copied file. ``kept`` of its ``size`` bytes are stored, and ``redacted`` counts what was removed."""

    url: str
    sha256: str
    media_type: str
    size: int
    kept: int
    is_cut: bool
    redacted: Sequence[tuple[str, int]]

    @property
    def ref(self) -> Ref:
        """The reference in facts, without the query: it may contain a secret for the address."""
        return Ref(
            blob=self.sha256,
            url=self.url.partition("?")[0],
            size=self.kept,
            media_type=self.media_type,
        )


def find_files(task: JsonObject, artifact: ArtifactRef, *, fetches: bool) -> list[str]:
    """The addresses of the files of an artifact in a record that are copied."""
    for one in objects_at(task, "artifacts"):
        if bound_id(text_at(one, "artifactId")) == artifact.name_at_peer:
            return list_files(one, fetches=fetches)
    return []


def keep_copies(
    draft: DecisionDraft, artifact: ArtifactRef, copies: Sequence[FileCopy], keep_ms: int | None
) -> None:
    """Records the artifact as stored."""
    if not _is_awaited(draft, artifact):
        return
    refs = {f"{COPY}{place}": copy.ref for place, copy in enumerate(copies)}
    scope = tasks.scope_of(draft.record)
    for (name, ref), copy in zip(refs.items(), copies, strict=True):
        named = {name: ref}
        if copy.is_cut:
            cut = OutputTruncated("artifact", copy.size, copy.kept)
            draft.add([Fact(scope, cut, named)])
        draft.add(
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
        awaited=count_awaited(draft, artifact.name_at_peer, artifact, stored=True),
        linked=None if is_named(draft, artifact.name_at_peer) else True,
    )
    draft.catalogued[artifact.name_at_peer] = replace(artifact, stored=True)
    draft.add(draft.decide(ObserveArtifact(stored, draft.context.mint("step"), refs)))
    if keep_ms is not None and copies:
        at_ms = draft.decision.now_ms + keep_ms
        draft.due.append(DueChange(f"output:{draft.record.task_id}", at_ms))


def wait_for_file(draft: DecisionDraft, artifact: ArtifactRef, reason: str) -> None:
    """The file is unavailable now: the task waits until it can be fetched, or the time of the run is over."""
    if not _is_awaited(draft, artifact) or draft.record.status is Status.WAITING_RESOURCE:
        return
    waiting = TaskWaiting(
        waiting_for="resource",
        status=Status.WAITING_RESOURCE,
        reason=f"a file of artifact {artifact.artifact_id} cannot be fetched: {reason}",
        resource="file",
    )
    draft.add(draft.decide(WaitFor(waiting)))


def refuse_file(draft: DecisionDraft, artifact: ArtifactRef, reason: str) -> None:
    """The file will never be available: the run fails, since its artifact is not what the agent announced."""
    if not _is_awaited(draft, artifact):
        return
    failure = ErrorDetail(
        code="artifact_unavailable",
        category=ErrorCategory.PEER,
        message=f"a file of artifact {artifact.artifact_id} cannot be fetched: {reason}",
        retryable=True,
        source=draft.context.peer,
        native=draft.record.attempts[-1].native_status,
    )
    end_run(draft, RunEnd(failure, native=failure.native, is_answer=True))


def _is_awaited(draft: DecisionDraft, artifact: ArtifactRef) -> bool:
    """Whether the artifact is still wanted: no newer version, no cancel and no pause since."""
    return (
        draft.record.withheld is not None
        and draft.record.status is not Status.CANCELLING
        and artifact in list_awaited(draft.record, draft.context.catalogue)
    )
