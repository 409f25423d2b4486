"""Changed rows of an owner's lists: the notes that the relay writes, and the rows that followers get.

A note names the changed row and the time. The row itself is read from its record when the note is read, so a follower
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
"""The type of an entry that is not shown: a later one has the same row."""
_UNFOLLOWED: Final = frozenset({SESSIONS, SCHEDULES})


def note_task(row: IndexRow, feed_id: str) -> EncodedEvent | None:
    """The same for followers of a tenant, who see lists of tasks only."""
    return None if row.agent == JOBS else note_row(row, feed_id)


def note_row(row: IndexRow, feed_id: str) -> EncodedEvent | None:
    """The note of a changed row of the feed; None for a list without followers.

    The same change always has the same id.
    """
    if row.agent in _UNFOLLOWED:
        return None
    at_ms = int(feed_id.partition("-")[0] or row.at_ms)
    name = f"row_{feed_id or row.at_ms}_{row.facade}"
    kind = JOB_ROW if row.agent == JOBS else TASK_ROW
    # Generated ids and times need no escaping. This runs for every row that is copied to a list.
    members = (
        f'"eventId":"{name}","type":"{kind}","timestamp":"{_format(at_ms)}","name":"{row.facade}"}}'
    )
    return EncodedEvent(name, kind, members.encode())


_format: Final = lru_cache(256)(format_ms)
