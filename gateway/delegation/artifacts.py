"""Artifacts of a peer become facts: each of them once per version, when it is whole and stored (EVC-14, A2A-10).

Pure. A record names the first artifacts of its task and counts the others, so what is known of those stands in the
catalogue of the ``Sight``: the driver fills it as it stores them, and whoever takes the run up reads it from events.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import orjson

from passerelle.a2a_mapping.members import objects_at, text_at
from passerelle.a2a_mapping.preview import preview_parts
from passerelle.core.errors import TooLarge
from passerelle.core.payloads.run import ArtifactChanged
from passerelle.core.ports.uploads import UPLOADED
from passerelle.core.record import value
from passerelle.core.task_commands import ObserveArtifact
from passerelle.core.task_record import KEPT_ARTIFACTS
from passerelle.core.thread import ThreadRecord
from passerelle.gateway.delegation.constraining import enforce
from passerelle.gateway.delegation.spill import CAP

if TYPE_CHECKING:
    from collections.abc import Sequence

    from passerelle.core.events import Fact
    from passerelle.core.facts import Ref
    from passerelle.core.json import JsonObject
    from passerelle.core.task_record import ArtifactRef
    from passerelle.core.thread import NamedArtifact
    from passerelle.gateway.delegation.step import Step

NAME_CHARS: Final = 200
"""Of the name of an artifact, as records have it: they are read and written whole."""
MOST_ARTIFACTS: Final = 10_000
"""Of one task; an agent that brings more is told to stop."""


@dataclass(frozen=True, slots=True)
class Catalogued:
    """What is known of an artifact: our id, and the version that stands."""

    artifact_id: str
    version: int
    sha256: str


@value
class Described:
    """An artifact as the agent brought it; ``packed`` is what its hash and size are of."""

    name_at_peer: str
    packed: bytes
    sha256: str
    parts: int
    media_types: tuple[str, ...]
    name: str | None


@dataclass(frozen=True, slots=True)
class Place:
    """How far the artifacts of one answer are settled, where they are more than one append holds."""

    answer: JsonObject
    settled: int


def settle(step: Step, artifacts: Sequence[JsonObject], answer: JsonObject) -> bool:
    """Records the artifacts that an answer of the peer makes whole; False when it takes a further append.

    ``answer`` is what tells the repeat of this call for the rest of them.

    Raises:
        TooLarge: more than :data:`MOST_ARTIFACTS`.
    """
    check_number(len(artifacts))
    place = step.sight.place
    done = place.settled if place is not None and place.answer is answer else 0
    for number in range(done, len(artifacts)):
        if step.is_full():
            step.more, step.place = True, Place(answer, number)
            return False
        step.add(settle_one(step, artifacts[number]))
    enforce(step)
    return True


def check_number(number: int) -> None:
    """Refuses a task with too many artifacts.

    Raises:
        TooLarge: there are more than :data:`MOST_ARTIFACTS`.
    """
    if number > MOST_ARTIFACTS:
        raise TooLarge("the list of artifacts of one task", MOST_ARTIFACTS)


def settle_one(step: Step, artifact: JsonObject) -> list[Fact]:
    """The one fact that an artifact is whole and stored; none when it says nothing new."""
    parts = objects_at(artifact, "parts")
    one = describe(artifact, parts)
    known = find_known(step, one.name_at_peer)
    if known is not None and known.sha256 == one.sha256:
        return []
    standing = _find_standing(step, one.name)
    earlier = standing if standing and standing.task_id != step.record.task_id else None
    replaced = known or earlier
    changed = ArtifactChanged(
        artifact_id=known.artifact_id if known else step.sight.mint("art"),
        name_at_peer=one.name_at_peer,
        version=max(each.version for each in (replaced, standing) if each) + 1 if replaced else 1,
        sha256=one.sha256,
        size=len(one.packed),
        parts=one.parts,
        media_types=one.media_types,
        name=one.name,
        stored=_is_here(step, artifact, one.name_at_peer),
        replaces=replaced.artifact_id if replaced else None,
    )
    refs: dict[str, Ref] = {}
    if len(one.packed) > CAP:
        refs["artifact"] = step.spill.keep(one.packed, preview_parts(parts))
    step.catalogued[one.name_at_peer] = Catalogued(changed.artifact_id, changed.version, one.sha256)
    return step.tell(ObserveArtifact(changed, step.step_id, refs))


def list_files(artifact: JsonObject, *, fetches: bool) -> list[str]:
    """The addresses of the files of an artifact that are copied: all of them, or what its agent has uploaded.

    One that holds its content itself is no address.
    """
    urls = (text_at(part, "url") for part in objects_at(artifact, "parts"))
    return [
        url
        for url in urls
        if url and not url.startswith("data:") and (fetches or url.startswith(UPLOADED))
    ]


def _is_here(step: Step, artifact: JsonObject, name: str) -> bool:
    """Whether the artifact stands with its frame. Files of one that the record does not name are not waited for."""
    if not list_files(artifact, fetches=step.sight.fetches):
        return True
    named = step.record.artifacts
    return len(named) >= KEPT_ARTIFACTS and all(one.name_at_peer != name for one in named)


def bound_id(name: str) -> str:
    """What records call an artifact of the agent: its own id, unless that is no id but a content."""
    if len(name) <= NAME_CHARS:
        return name
    return f"sha256:{hashlib.sha256(name.encode()).hexdigest()}"


def describe(artifact: JsonObject, parts: Sequence[JsonObject]) -> Described:
    """What is recorded of an artifact beside its ids; ``parts`` are its parts."""
    packed = orjson.dumps(artifact)
    types: set[str] = set()
    for part in parts:
        if "mediaType" in part and (media_type := text_at(part, "mediaType")):
            types.add(media_type)
    return Described(
        bound_id(text_at(artifact, "artifactId")),
        packed,
        hashlib.sha256(packed).hexdigest(),
        len(parts),
        tuple(sorted(types)),
        text_at(artifact, "name")[:NAME_CHARS] or None if "name" in artifact else None,
    )


def _find_standing(step: Step, title: str | None) -> NamedArtifact | None:
    """The version of the artifact of this name that stands in the context, whichever task produced it (LT-17)."""
    thread = step.decision.state(step.sight.thread)
    if title is None or not isinstance(thread, ThreadRecord):
        return None
    return thread.artifacts.get(title)


def find_known(step: Step, name: str) -> Catalogued | None:
    """What is known of the artifact that the peer calls ``name``."""
    fresh = step.catalogued.get(name)
    if fresh is not None:
        return fresh
    for one in step.record.artifacts:
        if one.name_at_peer == name:
            return _catalogue(one)
    return step.sight.catalogue.get(name)


def list_all(step: Step) -> dict[str, Ref]:
    """A reference to the list of all artifacts, where the record names only the first of them."""
    if step.record.artifact_count <= KEPT_ARTIFACTS:
        return {}
    named = {one.name_at_peer: _catalogue(one) for one in step.record.artifacts}
    known: dict[str, Catalogued] = {**named, **step.sight.catalogue, **step.catalogued}
    listed = [
        {"artifactId": one.artifact_id, "version": one.version, "sha256": one.sha256}
        for one in known.values()
    ]
    return {"artifacts": step.spill.keep(orjson.dumps(listed))}


def _catalogue(one: ArtifactRef) -> Catalogued:
    return Catalogued(one.artifact_id, one.version, one.sha256)
