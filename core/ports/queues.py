"""Port for the outgoing queue of an agent: waiting tasks, fair between their callers.

A queue defines an order only. The obligation to run is a due row of each task in its own shard (I9): if a queue loses a
task, that row adds it again at its old position among its caller's tasks.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from passerelle.core.wire.record import value

if TYPE_CHECKING:
    from collections.abc import Sequence


@value
class WaitingTask:
    """A queued task: ordered within its caller by priority, then by waiting time."""

    task_id: str
    caller: str
    """The key of its owner."""
    priority: int
    """-100 to 100."""
    since_ms: int


@value
class TaskAdded:
    """``is_new``: it was not queued before. ``position`` counts from 1, over all tasks that wait for the agent."""

    is_new: bool
    position: int


class QueueStore(Protocol):
    """The queues of agents by name, and of contexts by ``thread:<id>``."""

    async def add(self, agent: str, task: WaitingTask) -> TaskAdded:
        """Adds a task; an already queued one is moved by its priority.

        Raises:
            StoreUnavailable: the outcome is unknown; adding it again is safe.
        """
        ...

    async def take(self, agent: str, unused: str = "") -> str | None:
        """Removes and returns the next task: callers take turns, however many tasks each has. None: the queue is empty.

        ``unused``: the caller of a task that was taken before but no longer waits; it gets its turn back first.

        Raises:
            StoreUnavailable: a task may be removed; its due row adds it again.
        """
        ...

    async def drop(self, agent: str, task_id: str) -> bool:
        """Removes a task; returns whether it was queued. Raises StoreUnavailable."""
        ...

    async def list_waiting(self, agent: str, most: int | None = None) -> list[str]:
        """The queued tasks, by caller and then in order: all of a short queue, or the first ``most``.

        Raises:
            StoreUnavailable: the store does not answer.
        """
        ...

    async def count(self, agents: Sequence[str]) -> list[int]:
        """How many tasks wait for each of these agents. Raises StoreUnavailable."""
        ...
