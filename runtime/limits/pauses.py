"""Paused agents as this instance knows them: read from memory, so that no message costs a read.

``control/agent_pauses.py`` writes them, and makes every instance read them again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from passerelle.core.agent_name import find_base

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from passerelle.core.payloads.limit import AgentState
    from passerelle.core.session.machine import PausedAgent


class AgentPauses:
    """Paused agents by configured name; a pause applies to all tenants of the agent."""

    def __init__(self) -> None:
        self._paused: Mapping[str, PausedAgent] = {}
        self._listeners: list[Callable[[str], None]] = []

    def find(self, agent: str) -> PausedAgent | None:
        """The pause of an agent; None: it gets work."""
        return self._paused.get(find_base(agent)) if self._paused else None

    def find_state(self, agent: str) -> AgentState:
        """Whether an agent gets work."""
        pause = self.find(agent)
        return "active" if pause is None else pause.state

    @property
    def names(self) -> frozenset[str]:
        """All agents that get no new work."""
        return frozenset(self._paused)

    def listen(self, on_resumed: Callable[[str], None]) -> None:
        """Calls ``on_resumed`` with each agent that gets work again."""
        self._listeners.append(on_resumed)

    def take(self, paused: Mapping[str, PausedAgent]) -> None:
        """Replaces all pauses by the stored ones."""
        gone = self._paused.keys() - paused.keys()
        self._paused = dict(paused)
        for name in sorted(gone):
            for listener in self._listeners:
                listener(name)
