"""What has to be stored before a task may complete (I5)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from passerelle.core.task.record import KEPT_ARTIFACTS
from passerelle.core.task.status import Status

if TYPE_CHECKING:
    from passerelle.core.task.record import ArtifactRef, TaskRecord

PARENT: Final = "parent"
"""The consumer of a child task's result: its parent task."""
NO_PARENT: Final = "its parent has not been notified"


def find_missing(state: TaskRecord) -> str | None:
    """The first missing fact that completion requires, or None (I5)."""
    last = state.attempts[-1] if state.attempts else None
    if last is None or (last.status is not Status.COMPLETED and state.withheld is None):
        return "the agent has not ended the run"
    unstored = find_unstored(state)
    if unstored is not None:
        return f"artifact {unstored.artifact_id} is not stored"
    if state.awaited:
        return f"{state.awaited} of the artifacts after the first {KEPT_ARTIFACTS} are not stored"
    if state.acceptance and (state.coverage is None or state.coverage.state != "met"):
        return "its conditions are not met"
    if is_owed_to_parent(state):
        return NO_PARENT
    if last.status is not Status.COMPLETED:
        return "the run has not ended"
    if not state.delivery:
        return "no delivery is recorded"
    return None


def is_owed_to_parent(state: TaskRecord) -> bool:
    """Whether the result is still to be delivered to the parent task."""
    return state.parent_task_id is not None and PARENT not in state.delivery


def find_unstored(state: TaskRecord) -> ArtifactRef | None:
    """The first named artifact whose content is not stored yet."""
    return next((artifact for artifact in state.artifacts if not artifact.stored), None)


def is_stored(state: TaskRecord) -> bool:
    """Whether the content of every artifact is stored, including those that are only counted."""
    return find_unstored(state) is None and not state.awaited
