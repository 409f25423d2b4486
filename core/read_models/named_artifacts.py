"""Which artifact of a context a name means (LT-19). Pure.

Of tasks that went on from each other the newest has the name. Where several tasks have it and none of them went on from
the other, as with follow-ups beside each other, or where one task has it twice, nobody but the caller knows.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from passerelle.core.ids import TaskId, expose
from passerelle.core.read_models.lineage import SOURCE, find_source, has_implicit_source
from passerelle.core.wire.record import record

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Sequence

    from passerelle.core.task.record import ArtifactRef, TaskRecord

MOST_CANDIDATES: Final = 20
"""That one question names, the newest ones."""
_NUMBER: Final = re.compile(r"(?:no\.?|number|#)?\s*(\d{1,3})\s*[.)]?", re.IGNORECASE)
_WORD: Final = re.compile(r"[0-9A-Za-z_~-]+")


@record
class ArtifactCandidate:
    """An artifact that may be meant; ``number`` is its place in the question, from 1."""

    number: int
    task: str
    artifact: str
    agent: str
    title: str
    version: int
    at: str
    name_at_peer: str


def list_candidates(
    earlier: Sequence[TaskRecord], name: str, said: Collection[str] = ()
) -> tuple[ArtifactCandidate, ...]:
    """What ``name`` may mean, the oldest first; ``earlier`` are the tasks of a thread, the newest first.

    ``said`` are the ids of tasks that the message names beside it: where one of them has the name, it is meant.
    """
    having = [one for one in earlier if one.rolled_back is None and any(_list_named(one, name))]
    named = [one for one in having if one.task_id in said]
    passed = {older for one in having for older in _list_sources(one, earlier)}
    left = named or [one for one in having if one.task_id not in passed]
    found = [(task, artifact) for task in reversed(left) for artifact in _list_named(task, name)]
    return tuple(
        ArtifactCandidate(
            number,
            expose(TaskId(task.task_id), task.exposure),
            artifact.artifact_id,
            task.kind,
            task.title,
            artifact.version,
            task.status_at,
            artifact.name_at_peer,
        )
        for number, (task, artifact) in enumerate(found[-MOST_CANDIDATES:], 1)
    )


def pick(candidates: Sequence[ArtifactCandidate], text: str) -> ArtifactCandidate | None:
    """The one that an answer names, by number or by the id of artifact or task; None where that is no single one."""
    said = _NUMBER.fullmatch(text.strip())
    if said is not None:
        return next((one for one in candidates if one.number == int(said[1])), None)
    words = set(_WORD.findall(text))
    meant = [one for one in candidates if one.artifact in words]
    meant = meant or [one for one in candidates if one.task in words]
    return meant[0] if len(meant) == 1 else None


def _list_named(task: TaskRecord, name: str) -> Iterator[ArtifactRef]:
    return (one for one in task.artifacts if one.name == name and one.direction == "produced")


def _list_sources(task: TaskRecord, earlier: Sequence[TaskRecord]) -> set[str]:
    """The tasks that one has gone on from, and those that these have."""
    known = {one.task_id: one for one in earlier}
    found, left = set[str](), [task]
    while left:
        one = left.pop()
        targets = {edge.target for edge in one.relationships if edge.kind == SOURCE}
        if has_implicit_source(one):
            older = [each for each in earlier if each.task_id < one.task_id]
            source = find_source(one, older)
            targets = set[str]() if source is None else {source.task_id}
        left += [known[target] for target in targets - found if target in known]
        found |= targets
    return found
