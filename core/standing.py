"""What follows from a change of records: open things, lists of tasks, and whether projections must look at the events.

None of it is decided by a caller. It is read off the records before and after, so no write path can forget it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from passerelle.core.approval import ActionRecord
from passerelle.core.batch import OpenChange
from passerelle.core.ids import TaskId, expose
from passerelle.core.ports import IndexRow
from passerelle.core.status import ENDED, TERMINAL, Status
from passerelle.core.task_record import TaskRecord
from passerelle.core.times import parse_ms

if TYPE_CHECKING:
    from collections.abc import Mapping

    from passerelle.core.batch import EntityRef
    from passerelle.core.machine import Record
    from passerelle.core.ports import Part


_ENDS: Final[Mapping[Status, Part]] = {
    Status.COMPLETED: "completed",
    Status.CANCELLED: "canceled",
}
_LISTED: Final = frozenset(Status) - {Status.ARCHIVED}


@dataclass(frozen=True, slots=True)
class Standing:
    """The derived parts of a batch."""

    opened: tuple[OpenChange, ...]
    task_times: tuple[tuple[str, int], ...]
    index: tuple[IndexRow, ...]
    feed: bool


def derive_standing(
    before: Mapping[EntityRef, Record | None], after: Mapping[EntityRef, Record | None]
) -> Standing:
    """Compares the records of a decision before and after it."""
    opened: list[OpenChange] = []
    index: list[IndexRow] = []
    feed = False
    for ref, record in after.items():
        earlier = before.get(ref)
        if record is earlier:
            continue
        if is_open(record) and not is_open(earlier):
            opened.append(OpenChange(ref.id, 0))
        if is_open(earlier) and not is_open(record):
            opened.append(OpenChange(ref.id, None))
        if isinstance(record, ActionRecord):
            feed = True
        # A task that is put away stays where its end has put it.
        if isinstance(record, TaskRecord) and record.shown and record.status in _LISTED:
            was = earlier if isinstance(earlier, TaskRecord) else None
            if was is None or not was.shown or was.status is not record.status:
                facade = expose(TaskId(record.task_id), record.exposure)
                at_ms = parse_ms(record.status_at)
                index.append(IndexRow(record.owner, record.kind, facade, at_ms, find_part(record)))
    times = tuple((row.facade, row.at_ms) for row in index)
    return Standing(tuple(opened), times, tuple(index), feed)


def find_part(record: TaskRecord) -> Part:
    """Where a task stands in its owner's list: by the end that callers see."""
    if record.status not in TERMINAL:
        return "open"
    if record.rejected:
        return "rejected"
    return _ENDS.get(record.status, "failed")


def is_open(record: Record | None) -> bool:
    """Whether the thing keeps its session's stream: a task that has not ended, a question without an answer."""
    if isinstance(record, TaskRecord):
        return record.status not in ENDED
    return isinstance(record, ActionRecord) and record.state == "pending"
