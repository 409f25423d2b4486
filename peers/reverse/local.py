"""The agents linked to this instance, and the choice of a socket for the next call."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from passerelle.channels.reverse_link import AgentLink
    from passerelle.channels.reverse_side import UnregisterCallback


@dataclass(slots=True, eq=False)
class LinkedAgent:
    """One agent name on one socket. ``most`` calls may run there; ``leave`` notifies the socket that it lost it."""

    agent: str
    link: AgentLink
    generation: int
    most: int
    leave: UnregisterCallback
    working: int = 0


class LocalLinks:
    """All linked agents of this instance, in the order in which they were linked."""

    def __init__(self) -> None:
        self._served: defaultdict[str, list[LinkedAgent]] = defaultdict(list)

    def list(self, agent: str | None = None) -> list[LinkedAgent]:
        """Those of an agent, or all of them."""
        if agent is not None:
            return list(self._served.get(agent, ()))
        return [one for served in self._served.values() for one in served]

    def holds(self, agent: str) -> bool:
        """Whether the agent can be called from here."""
        return agent in self._served

    def choose(self, agent: str) -> LinkedAgent | None:
        """The one with the most free slots; it may have none."""
        return max(
            self._served.get(agent, ()), key=lambda one: one.most - one.working, default=None
        )

    def add(self, served: LinkedAgent) -> None:
        """Adds a linked agent."""
        self.remove(served.agent, served.link)
        self._served[served.agent].append(served)

    def remove(self, agent: str, link: AgentLink) -> LinkedAgent | None:
        """Removes a name from a socket; None if the socket did not have it."""
        found = next((one for one in self._served.get(agent, ()) if one.link is link), None)
        if found is not None:
            self._served[agent].remove(found)
            if not self._served[agent]:
                del self._served[agent]
        return found
