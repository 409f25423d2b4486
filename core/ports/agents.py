"""Agents that dial in, the notifications to the instances that serve them, and what instances report of agents."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, TypeAlias

from passerelle.core.frozen import frozen

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence


@frozen
class AgentServed:
    """An agent that dials in: its last card, and the links that serve it now (link -> instance)."""

    card: bytes
    generation: int
    links: Mapping[str, str]


@frozen
class AgentRegistered:
    """A link serves an agent from now on; without ``pool`` it replaces the links of lower generations."""

    link: str
    generation: int
    pool: bool


@frozen
class AgentOffered:
    """A task waits for the agent; with ``turn``, a further message of it."""

    task: str
    turn: str = ""


@frozen
class AgentCancelled:
    """A task of the agent, by the agent's own id, is to stop."""

    remote: str


AgentUpdate: TypeAlias = AgentRegistered | AgentOffered | AgentCancelled


class DialedInAgents(Protocol):
    """Agents that dial in: their links and their waiting tasks. Updates may be lost or doubled, like any hint."""

    async def register(
        self, agent: str, link: str, instance: str, card: bytes, *, hold_ms: int, pool: bool
    ) -> int:
        """Stores a link for ``hold_ms``, announces it, and returns its generation."""
        ...

    async def keep(
        self, agent: str, link: str, instance: str, generation: int, *, hold_ms: int
    ) -> bool:
        """Extends a link; False if a newer one has replaced it."""
        ...

    async def unregister(self, agent: str, link: str) -> None:
        """Removes a link."""
        ...

    async def read(self, agent: str) -> AgentServed | None:
        """The stored agent; None if it never dialled in."""
        ...

    async def offer(self, agent: str, task: str, turn: str = "") -> None:
        """Stores and announces that a task, or a further message of it, waits for the agent."""
        ...

    async def list_waiting(self, agent: str) -> list[str]:
        """Waiting tasks, as far as they are stored."""
        ...

    async def forget(self, agent: str, task: str) -> None:
        """Removes a waiting task."""
        ...

    async def cancel(self, agent: str, remote: str) -> None:
        """Notifies the serving instances that a task of the agent is to stop."""
        ...

    async def listen(self, agent: str, on_update: Callable[[AgentUpdate], None]) -> None:
        """Returns once updates of the agent arrive here. At most one listener per agent."""
        ...

    async def ignore(self, agent: str) -> None:
        """Ends ``listen``."""
        ...


class AgentReports(Protocol):
    """Keeps one report per instance for a limited time. Raises StoreUnavailable if the store does not answer."""

    async def put(self, instance: str, report: bytes) -> None:
        """Replaces the last report of the instance."""
        ...

    async def read(self, instances: Sequence[str]) -> Mapping[str, bytes]:
        """The current reports of these instances; an instance without a report is left out."""
        ...
