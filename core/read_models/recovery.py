"""What a device that comes back finds, as one of six states (CHN-12). Out of records alone, never out of prose.

None of the six is a failure: a task that failed has ended, and how stands in its own record.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from passerelle.core.payloads.channel import Recovery
from passerelle.core.read_models.task import doubt_status
from passerelle.core.status import ENDED, Status
from passerelle.core.task_record import TaskRecord

_ASKING: Final = frozenset({Status.WAITING_INPUT, Status.WAITING_PERMISSION})
ORDER: Final[tuple[Recovery, ...]] = (
    "waiting",
    "unreachable",
    "running",
    "completed_undelivered",
    "idle",
    "archived_or_missing",
)
"""What a person should know first: of several, the earliest one counts."""


def find_recovery(task: TaskRecord, held: int, now_ms: int) -> Recovery:
    """How one task stands for a device that has its session up to the sequence ``held``."""
    if task.status is Status.ARCHIVED:
        return "archived_or_missing"
    if task.status in ENDED:
        is_known = task.last <= held or task.status is not Status.COMPLETED
        return "idle" if is_known else "completed_undelivered"
    if task.open_actions or task.status in _ASKING:
        return "waiting"
    if task.status is Status.LOST or doubt_status(task, now_ms) is not None:
        return "unreachable"
    if task.run is not None or task.status in _STARTING:
        return "running"
    return "idle"


def choose_recovery(found: Iterable[Recovery]) -> Recovery:
    """The state of several tasks, or of several streams, together; with none of them, nothing is under way."""
    states = set(found)
    for state in ORDER:
        if state in states:
            return state
    return "idle"


_STARTING: Final = frozenset(
    {Status.ACCEPTED, Status.QUEUED, Status.PREPARING, Status.RETRYING, Status.WAITING_RESOURCE}
)
"""Something will be done for the task without anybody's word."""
