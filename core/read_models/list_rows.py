"""Rows of an owner's lists as they change: what the relay notes of a change, and what those who follow are shown of it.

The note says which row has changed, and when. What the row is, is read from its record when the note is, so a reader
that was away for long gets each row as it is now.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Final

from passerelle.core.events import EncodedEvent
from passerelle.core.index_changes import JOBS, SCHEDULES, SESSIONS
from passerelle.core.wire.times import format_ms

if TYPE_CHECKING:
    from passerelle.core.ports.projections import IndexRow

TASK_ROW: Final = "task.row"
JOB_ROW: Final = "job.row"
NO_ROW: Final = "none"
"""What an entry is that is shown to nobody: another one has the same row, as it is now."""
_UNFOLLOWED: Final = frozenset({SESSIONS, SCHEDULES})


def note_task(row: IndexRow, feed_id: str) -> EncodedEvent | None:
    """The same for whoever follows a tenant, who sees no other lists than those of tasks."""
    return None if row.agent == JOBS else note_row(row, feed_id)


def note_row(row: IndexRow, feed_id: str) -> EncodedEvent | None:
    """The note of a change that came with a row of the feed; None of a list that nobody follows.

    The same change has the same id each time that it is brought.
    """
    if row.agent in _UNFOLLOWED:
        return None
    at_ms = int(feed_id.partition("-")[0] or row.at_ms)
    name = f"row_{feed_id or row.at_ms}_{row.facade}"
    kind = JOB_ROW if row.agent == JOBS else TASK_ROW
    # Ids of ours and times: nothing in them is escaped. It is made for every row that is brought to a list.
    told = (
        f'"eventId":"{name}","type":"{kind}","timestamp":"{_format(at_ms)}","name":"{row.facade}"}}'
    )
    return EncodedEvent(name, kind, told.encode())


_format: Final = lru_cache(256)(format_ms)
