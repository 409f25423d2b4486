"""Which task a question belongs to, as far as this process has met the question.

It never changes, so nothing here can be wrong; what is not known costs whoever asks one more read. Whoever answers has
mostly been shown the question by the process that opened it, or that read it for them.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from passerelle.core.approval.record import ActionRecord

_MOST: Final = 16_384


@dataclass(slots=True)
class Whereabouts:
    """Tasks by question, those met last."""

    _tasks: OrderedDict[str, str | None] = field(default_factory=OrderedDict["str", "str | None"])

    def note(self, record: ActionRecord) -> None:
        """A question was opened, changed or read."""
        action = record.request.action_id
        self._tasks[action] = record.scope.task_id
        self._tasks.move_to_end(action)
        if len(self._tasks) > _MOST:
            self._tasks.popitem(last=False)

    def find(self, action_id: str) -> str | None:
        """The task of a question; None where it has none, or is not known."""
        return self._tasks.get(action_id)
