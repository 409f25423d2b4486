"""Agents that dial in, and what is told to whoever serves them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping


@dataclass(frozen=True, slots=True)
class AgentServed:
    """An agent that dials in: its last card as it gave it, and link -> instance of those who serve it now."""

    card: bytes
    generation: int
    links: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class AgentRegistered:
    """A link serves an agent from now on; without ``pool`` the ones of lower generations do not any more."""

    link: str
    generation: int
    pool: bool


@dataclass(frozen=True, slots=True)
class AgentOffered:
    """A task waits for the agent; with ``turn``, a further message on it."""

    task: str
    turn: str = ""


@dataclass(frozen=True, slots=True)
class AgentCancelled:
    """A task of the agent, by the agent's own id, is to stop."""

    remote: str


AgentUpdate: TypeAlias = AgentRegistered | AgentOffered | AgentCancelled


class DialedInAgents(Protocol):
    """Agents that dial in: who serves them, and what waits for them. News may be lost or doubled, like any hint."""

    async def register(
        self, agent: str, link: str, instance: str, card: bytes, *, hold_ms: int, pool: bool
    ) -> int:
        """Notes a link for ``hold_ms``, tells it, and returns its generation."""
        ...

    async def keep(
        self, agent: str, link: str, instance: str, generation: int, *, hold_ms: int
    ) -> bool:
        """Says that a link still serves; False where it has lost the name."""
        ...

    async def unregister(self, agent: str, link: str) -> None:
        """Forgets a link."""
        ...

    async def read(self, agent: str) -> AgentServed | None:
        """What is known; None for an agent that never dialled in."""
        ...

    async def offer(self, agent: str, task: str, turn: str = "") -> None:
        """Notes and tells that a task, or a further message on it, waits for the agent."""
        ...

    async def list_waiting(self, agent: str) -> list[str]:
        """Tasks that wait, as far as is noted."""
        ...

    async def forget(self, agent: str, task: str) -> None:
        """A task waits no more."""
        ...

    async def cancel(self, agent: str, remote: str) -> None:
        """Tells whoever serves the agent that one of its tasks is to stop."""
        ...

    async def listen(self, agent: str, on_update: Callable[[AgentUpdate], None]) -> None:
        """Returns once news of the agent are told here. At most one listener for an agent."""
        ...

    async def ignore(self, agent: str) -> None:
        """Ends what ``listen`` began."""
        ...
