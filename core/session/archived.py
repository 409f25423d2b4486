"""What has left memory: the ref that names it, and the fact that each of its tasks is archived (ST-18, TEV-17).

A session leaves whole, and its bytes stay as they are: nothing is appended to say so. That a row of the archive stands
for it is the fact, and who reads a task from there is told it as an event.
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
    """A session as it left: with its events up to ``sequence``. Text form ``<session id>@<sequence>``.

    It names no place, so it holds wherever the session stands, and after it has come back.
    """

    session_id: str
    sequence: int

    def __str__(self) -> str:
        return f"{self.session_id}@{self.sequence}"

    @classmethod
    def read(cls, text: str) -> Self:
        """Reads the text form.

        Raises:
            InvalidInput: it is none.
        """
        match = _REF.fullmatch(text)
        if match is None or read_shard(match[1]) is None:
            raise InvalidInput("ref", "is no ref of the archive")
        return cls(match[1], int(match[2]))


def make_archived_event(task: TaskRecord, ref: str, runtime_id: str) -> Event:
    """The fact that a task is archived. Everybody who reads it gets the same event.

    Its time is that of the last change of the task: since then nothing has happened to it, and when it left is not
    kept. It has no sequence, since it stands in no stream.
    """
    event_id = derive_id("ev", shard_of(task.task_id), "archived", task.task_id, ref)
    fact = Fact(scope_of(task), TaskArchived(ref))
    return Event(event_id, task.updated_at, runtime_id, fact)
