"""Archived sessions: the ref that names one, and the event that each of its tasks is archived (ST-18, TEV-17).

A session is archived as a whole and its bytes stay unchanged: no event is appended. The archive row is the fact, and
readers of a task from the archive get it as an event.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final, Self

from passerelle.core.errors import InvalidInput
from passerelle.core.events import Event, Fact
from passerelle.core.ids import derive_id, read_shard, shard_of
from passerelle.core.payloads.task import TaskArchived
from passerelle.core.task.machine import scope_of
from passerelle.core.wire.record import value

if TYPE_CHECKING:
    from passerelle.core.task.record import TaskRecord

_REF: Final = re.compile(r"(se_[0-9A-Za-z]+)@([1-9][0-9]{0,15})")


@value
class ArchiveRef:
    """A session as archived, with its events up to ``sequence``. Text form ``<session id>@<sequence>``.

    It names no location, so it stays valid wherever the session is stored, and after it returns to memory.
    """

    session_id: str
    sequence: int

    def __str__(self) -> str:
        return f"{self.session_id}@{self.sequence}"

    @classmethod
    def read(cls, text: str) -> Self:
        """Reads the text form.

        Raises:
            InvalidInput: the text is not a ref.
        """
        match = _REF.fullmatch(text)
        if match is None or read_shard(match[1]) is None:
            raise InvalidInput("ref", "is not a ref of the archive")
        return cls(match[1], int(match[2]))


def make_archived_event(task: TaskRecord, ref: str, runtime_id: str) -> Event:
    """The event that a task is archived; equal for every reader.

    Its time is that of the task's last change, since the time of archiving is not kept. It has no sequence, since it is
    in no stream.
    """
    event_id = derive_id("ev", shard_of(task.task_id), "archived", task.task_id, ref)
    fact = Fact(scope_of(task), TaskArchived(ref))
    return Event(event_id, task.updated_at, runtime_id, fact)
