"""The agents that are linked to this instance, and over which of their sockets the next call goes."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from passerelle.channels.reverse_link import AgentLink
    from passerelle.channels.reverse_side import UnregisterCallback


@dataclass(slots=True, eq=False)
class Served:
    """One name over one socket. ``most`` calls may be at work there; ``leave`` tells the socket that it has lost it."""

    agent: str
    link: AgentLink
    generation: int
    most: int
    leave: UnregisterCallback
    working: int = 0


class LocalLinks:
    """All of this instance. ``listed`` is the order in which they came."""

    def __init__(self) -> None:
        self._served: defaultdict[str, list[Served]] = defaultdict(list)

    def list(self, agent: str | None = None) -> list[Served]:
        """Those of an agent, or all of them."""
        if agent is not None:
            return list(self._served.get(agent, ()))
        return [one for served in self._served.values() for one in served]

    def holds(self, agent: str) -> bool:
        """Whether the agent can be called from here."""
        return agent in self._served

    def choose(self, agent: str) -> Served | None:
        """The one with the most room; it may have none."""
        return max(
            self._served.get(agent, ()), key=lambda one: one.most - one.working, default=None
        )

    def add(self, served: Served) -> None:
        """An agent is linked."""
        self.remove(served.agent, served.link)
        self._served[served.agent].append(served)

    def remove(self, agent: str, link: AgentLink) -> Served | None:
        """A socket serves a name no more; None where it did not."""
        found = next((one for one in self._served.get(agent, ()) if one.link is link), None)
        if found is not None:
            self._served[agent].remove(found)
            if not self._served[agent]:
                del self._served[agent]
        return found
