"""Which task a question belongs to, as far as this process has met it, and records read ahead for its answer.

The task of a question never changes, so nothing here can be wrong; what is not known costs whoever asks one more read.
Whoever answers has mostly been shown the question by the process that opened it, or that read it for them.

What an answer needs is read while it is still being asked whether its sender may give one. Two questions that need not
wait for each other then cost one trip to the store: whether the link is still the newest, or whose the token is, and
what the answer is about. Nothing is told or decided by what was read ahead: whoever is refused learns nothing of it. It
stands in the context of one request; only an answer to that very question takes it.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Coroutine, Mapping

    from passerelle.core.approval.record import ActionRecord
    from passerelle.core.batch import EntityRef
    from passerelle.core.decision import Held

_MOST: Final = 16_384


@dataclass(slots=True)
class ActionIndex:
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


@dataclass(frozen=True, slots=True)
class Prefetch:
    """A read that has begun: of a question, and of the list of devices of whoever may answer it."""

    action_id: str
    list_id: str
    reading: asyncio.Task[Mapping[EntityRef, Held]]


_AHEAD: ContextVar[Prefetch | None] = ContextVar("ahead", default=None)


def read_ahead(
    action_id: str, list_id: str, reading: Coroutine[None, None, Mapping[EntityRef, Held]]
) -> None:
    """Begins a read for the request in whose context this is called."""
    task = asyncio.create_task(reading, name="ahead")
    # Whoever takes it is told of a failure; where nobody does, nobody has to be.
    task.add_done_callback(lambda done: None if done.cancelled() else done.exception())
    _AHEAD.set(Prefetch(action_id, list_id, task))


def forget_ahead() -> None:
    """The request is over: the next one in this context reads for itself."""
    _AHEAD.set(None)


async def take_ahead(action_id: str, list_id: str) -> Mapping[EntityRef, Held] | None:
    """What was read ahead for this answer; None where nothing was.

    Raises:
        NotFound, StoreUnavailable: as the read that began.
    """
    ahead = _AHEAD.get()
    if ahead is None or (ahead.action_id, ahead.list_id) != (action_id, list_id):
        return None
    return await ahead.reading
