"""Indexes the task of each approval that this process has seen, and prefetches records for an approval's answer.

The task of an approval never changes, so an entry is never wrong; a missing entry costs the caller one more read. Most
answers come from a caller to whom this process opened or read the approval.

The records that an answer needs are read while its sender is still being authorized. Two independent reads then cost
one trip to the store: the check of the link's generation or token, and the approval itself. A prefetch decides and
reveals nothing: a caller that is refused learns nothing from it. It is bound to the context of one request; only an
answer to the same approval takes it.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from passerelle.core.frozen import frozen

if TYPE_CHECKING:
    from collections.abc import Coroutine, Mapping

    from passerelle.core.approval.record import ActionRecord
    from passerelle.core.batch import EntityRef
    from passerelle.core.decision import Held

_MOST: Final = 16_384


@dataclass(slots=True)
class ActionIndex:
    """Tasks by approval, the most recently seen."""

    _tasks: OrderedDict[str, str | None] = field(default_factory=OrderedDict["str", "str | None"])

    def note(self, record: ActionRecord) -> None:
        """Records that an approval was opened, changed or read."""
        action = record.request.action_id
        self._tasks[action] = record.scope.task_id
        self._tasks.move_to_end(action)
        if len(self._tasks) > _MOST:
            self._tasks.popitem(last=False)

    def find(self, action_id: str) -> str | None:
        """The task of an approval; None if it has none, or is not known."""
        return self._tasks.get(action_id)


@frozen
class Prefetch:
    """A started read of an approval, and of the device list of the principal that may answer it."""

    action_id: str
    list_id: str
    reading: asyncio.Task[Mapping[EntityRef, Held]]


_AHEAD: ContextVar[Prefetch | None] = ContextVar("ahead", default=None)


def read_ahead(
    action_id: str, list_id: str, reading: Coroutine[None, None, Mapping[EntityRef, Held]]
) -> None:
    """Starts a read for the request in whose context this is called."""
    task = asyncio.create_task(reading, name="ahead")
    # The caller that takes the read gets its failure; if no caller takes it, the failure is dropped.
    task.add_done_callback(lambda done: None if done.cancelled() else done.exception())
    _AHEAD.set(Prefetch(action_id, list_id, task))


def forget_ahead() -> None:
    """Drops the prefetch at the end of a request: the next one in this context reads for itself."""
    _AHEAD.set(None)


async def take_ahead(action_id: str, list_id: str) -> Mapping[EntityRef, Held] | None:
    """Returns what was prefetched for this answer; None if nothing was.

    Raises:
        NotFound, StoreUnavailable: as the prefetching read.
    """
    ahead = _AHEAD.get()
    if ahead is None or (ahead.action_id, ahead.list_id) != (action_id, list_id):
        return None
    return await ahead.reading
