"""The outgoing queue of an agent: tasks that wait for it, fair between their callers.

A queue says in which order tasks go on. What is owed is a due row of each task in its own shard (I9): a task that a
queue has lost is put into it again by that row, at its old place among those of its caller.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from passerelle.core.wire.record import value

if TYPE_CHECKING:
    from collections.abc import Sequence


@value
class WaitingTask:
    """A task in line: among those of its caller the higher priority is first, then who waits since earlier."""

    task_id: str
    caller: str
    """The key of its owner."""
    priority: int
    """-100 to 100."""
    since_ms: int


@value
class TaskAdded:
    """``is_new``: it was not there. ``position`` counts from 1: how many wait for the agent, this one among them."""

    is_new: bool
    position: int


class QueueStore(Protocol):
    """The queues of agents by their names, and of contexts by ``thread:<id>``."""

    async def add(self, agent: str, task: WaitingTask) -> TaskAdded:
        """Puts a task in line; one that is there goes to the place of its priority.

        Raises:
            StoreUnavailable: whether it is there is not known; to add it again does no harm.
        """
        ...

    async def take(self, agent: str, unused: str = "") -> str | None:
        """Takes out whose turn it is: callers take turns, whatever each of them has waiting. None: nobody waits.

        ``unused``: the caller of a task that was taken before and waited no more; it gets that turn back first.

        Raises:
            StoreUnavailable: a task may be out; its due row puts it back.
        """
        ...

    async def drop(self, agent: str, task_id: str) -> bool:
        """Takes out a task that waits no more; whether it was there. Raises StoreUnavailable."""
        ...

    async def list_waiting(self, agent: str, most: int | None = None) -> list[str]:
        """The tasks that wait, by caller and then in order: all of a line that is short, or the first ``most``.

        Raises:
            StoreUnavailable: nobody knows.
        """
        ...

    async def count(self, agents: Sequence[str]) -> list[int]:
        """How many wait for each of these agents. Raises StoreUnavailable."""
        ...
