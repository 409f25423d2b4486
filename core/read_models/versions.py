"""The versions of a named artifact over the tasks of one context, each by reference (SNAP-7, LT-17)."""

from __future__ import annotations

from collections.abc import Iterable

from passerelle.core.read_models.task import name_task
from passerelle.core.record import record
from passerelle.core.task_record import TaskRecord
from passerelle.core.thread import ThreadRecord


@record
class VersionLine:
    """The last version that one task produced; those before it stand in the model of the task's artifacts."""

    version: int
    artifact_id: str
    task_id: str
    run_id: str
    sha256: str
    size: int
    replaces: str | None = None
    blob: str | None = None


@record
class VersionChain:
    """The versions of one name, the oldest first. ``latest`` is the artifact that stands."""

    name: str
    latest: str
    versions: tuple[VersionLine, ...]


def list_versions(thread: ThreadRecord, tasks: Iterable[TaskRecord]) -> tuple[VersionChain, ...]:
    """What the tasks of a thread produced under the names that the thread remembers, the last told name last."""
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
