"""Derives index changes from changed records: open objects, lists of tasks, and rows for projections.

No caller decides these. They are computed from the records before and after, so no write path can forget them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from passerelle.core.approval.machine import ActionRecord
from passerelle.core.batch import OpenChange
from passerelle.core.event_type import EventType
from passerelle.core.frozen import frozen
from passerelle.core.ids import TaskId, expose
from passerelle.core.job.machine import LIVE
from passerelle.core.ports.projections import IndexRow
from passerelle.core.session.machine import SessionRecord
from passerelle.core.task.record import TaskRecord
from passerelle.core.task.status import ENDED, LISTED, TERMINAL, Status
from passerelle.core.wire.record import change
from passerelle.core.wire.times import parse_ms

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from passerelle.core.batch import EntityRef
    from passerelle.core.machine import Record
    from passerelle.core.ports.projections import IndexPart


_ENDS: Final[Mapping[Status, IndexPart]] = {
    Status.COMPLETED: "completed",
    Status.CANCELLED: "canceled",
}
LINK_EVENTS: Final = frozenset(
    {
        EventType.CHANNEL_CONNECTED,
        EventType.CHANNEL_DISCONNECTED,
        EventType.CHANNEL_RESUMED,
        EventType.CHANNEL_MESSAGE,
    }
)
"""Facts of a principal's device links, which its inbox shows too."""
_PROJECTED: Final = LINK_EVENTS | {
    EventType.CHANNEL_PERMISSION_FORWARDED,
    EventType.CHANNEL_PERMISSION_RETURNED,
}
"""Facts that a projection reads although they change no record."""
_LISTED: Final = frozenset(Status) - {Status.ARCHIVED}

UNSEEN: Final = ""
"""The list of an owner's tasks that A2A callers do not see: it belongs to no agent."""
SESSIONS: Final = "~sessions"
"""The list of an owner's sessions that have a title."""
SCHEDULES: Final = "~schedules"
"""The list of an owner's schedules."""
JOBS: Final = "~jobs"
"""The list of an owner's jobs."""
_UNSEEN_ENDS: Final = TERMINAL - {Status.COMPLETED}


@frozen
class IndexChanges:
    """The derived parts of a batch."""

    opened: tuple[OpenChange, ...]
    task_times: tuple[tuple[str, int], ...]
    index: tuple[IndexRow, ...]
    feed: bool


def derive_index_changes(
    before: Mapping[EntityRef, Record | None],
    after: Mapping[EntityRef, Record | None],
    types: Iterable[str] = (),
) -> IndexChanges:
    """Compares the records of a decision before and after it; ``types`` are the types of its events."""
    opened: list[OpenChange] = []
    index: list[IndexRow] = []
    named: list[IndexRow] = []
    feed = not _PROJECTED.isdisjoint(types)
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
        if isinstance(record, TaskRecord):
            index += list_rows(earlier if isinstance(earlier, TaskRecord) else None, record)
        if isinstance(record, SessionRecord):
            named += list_session(record)
            if record.schedule is not None and not record.ticks and is_open(earlier):
                named.append(IndexRow(record.owner, SCHEDULES, record.session_id, 0, "gone"))
    times = tuple((row.facade, row.at_ms) for row in index if row.part != "gone")
    return IndexChanges(tuple(opened), times, (*index, *named), feed)


def list_session(record: SessionRecord) -> tuple[IndexRow, ...]:
    """The rows of a session in its owner's lists: titled sessions, jobs, live schedules."""
    at_ms = parse_ms(record.created_at)
    lists = [SESSIONS] if record.title is not None else []
    if record.ticks:
        lists.append(SCHEDULES)
    if record.job is not None:
        lists.append(JOBS)
    return tuple(IndexRow(record.owner, one, record.session_id, at_ms) for one in lists)


def list_rows(earlier: TaskRecord | None, record: TaskRecord) -> tuple[IndexRow, ...]:
    """The row of a task in its owner's lists, if its status changed or it became visible.

    Visible tasks are listed by agent. Of the others the control plane lists those that were created and not started,
    and those that ended without becoming visible; a bare Message never was a task for any caller.
    """
    if record.status not in _LISTED:
        return ()  # an archived task stays listed under its final status
    if earlier is not None and earlier.owner != record.owner:
        return (*_remove_rows(earlier), *list_rows(None, record))
    moved = (
        earlier is None
        or earlier.status is not record.status
        or earlier.exposure != record.exposure
    )
    if record.shown:
        if not (moved or (earlier is not None and not earlier.shown)):
            return ()
        agent = _choose_list(record)
    elif moved and (not record.attempts or record.status in _UNSEEN_ENDS):
        agent = UNSEEN
    else:
        return ()
    return (change(make_row(record), agent=agent),)


def _remove_rows(record: TaskRecord) -> tuple[IndexRow, ...]:
    """The rows that remove a task from both lists of its owner: it may have been listed as not visible before."""
    row = change(make_row(record), part="gone")
    return tuple(change(row, agent=agent) for agent in dict.fromkeys((UNSEEN, row.agent)))


def make_row(record: TaskRecord) -> IndexRow:
    """The row of a task that callers see."""
    facade, agent = expose(TaskId(record.task_id), record.exposure), _choose_list(record)
    return IndexRow(record.owner, agent, facade, parse_ms(record.status_at), find_part(record))


def _choose_list(record: TaskRecord) -> str:
    """Tasks that lists must not show are kept in the list that A2A callers do not read (TR-6)."""
    return record.kind if record.visibility in LISTED else UNSEEN


def find_part(record: TaskRecord) -> IndexPart:
    """The status bucket of a task in its owner's list: by the end that callers see."""
    if record.status not in TERMINAL:
        return "open"
    if record.rejected:
        return "rejected"
    return _ENDS.get(record.status, "failed")


def is_open(record: Record | None) -> bool:
    """Whether it keeps its session in memory: an open task, an open approval, a schedule, a running job."""
    if isinstance(record, TaskRecord):
        return record.status not in ENDED
    if isinstance(record, SessionRecord):
        return record.ticks or (record.job is not None and record.job.status in LIVE)
    return isinstance(record, ActionRecord) and record.state == "pending"
