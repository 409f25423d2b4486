"""Resolves the name of an artifact in a context (LT-19). Pure.

If tasks continue each other, the newest one has the name. If several tasks have it and none continues the other, as
with parallel follow-ups, or one task has it twice, only the caller can choose.
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
"""Candidates in one question, newest first kept."""
_NUMBER: Final = re.compile(r"(?:no\.?|number|#)?\s*(\d{1,3})\s*[.)]?", re.IGNORECASE)
_WORD: Final = re.compile(r"[0-9A-Za-z_~-]+")


@record
class ArtifactCandidate:
    """An artifact that may be meant; ``number`` is its number in the question, from 1."""

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
    """The candidates for ``name``, oldest first; ``earlier`` are the tasks of a thread, newest first.

    ``said`` are the task ids in the message: if one of them has the name, it is meant.
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
    """The candidate that an answer names, by number or by the id of artifact or task; None if not exactly one."""
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
    """The sources of a task, and their sources in turn."""
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
