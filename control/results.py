"""The result of a task as one text, for tables of many tasks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from passerelle.a2a_mapping.content import read_text
from passerelle.a2a_mapping.members import object_at, objects_at
from passerelle.core.commands import GetTask
from passerelle.core.errors import PasserelleError
from passerelle.core.frozen import frozen
from passerelle.core.ids import TaskId, expose

if TYPE_CHECKING:
    from passerelle.control.task_reads import TaskReads
    from passerelle.core.principal import Principal
    from passerelle.core.task.record import TaskRecord

RESULT_LENGTH: Final = 2_000
"""Characters of a result in one table row."""


@frozen
class Results:
    """Reads tasks as their owner sees them."""

    reads: TaskReads

    async def read(self, principal: Principal, task: TaskRecord) -> str | None:
        """The texts of its artifacts, one line each; without artifacts the agent's last message.

        The parts of an artifact are one text. None if there is no text, or it cannot be read now.
        """
        facade = expose(TaskId(task.task_id), task.exposure)
        try:
            if not task.shown:
                owned = await self.reads.ownership.find(principal, facade, None, hidden=True)
                said = await self.reads.contents.read_answer(owned.record)
                return read_text(said)[:RESULT_LENGTH] or None
            shown = await self.reads.read(principal, GetTask(facade, history_length=0))
        except PasserelleError:
            return None
        texts = [text for one in objects_at(shown, "artifacts") if (text := read_text(one))]
        said = object_at(object_at(shown, "status"), "message")
        return ("\n".join(texts) or read_text(said))[:RESULT_LENGTH] or None
