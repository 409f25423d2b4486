"""The agents that a caller may use, with their skills: for choosing an agent without reading every card.

It contains nothing that the agents' cards do not contain, and no agent that the caller may not call.
"""

from __future__ import annotations

import asyncio
from dataclasses import field
from typing import TYPE_CHECKING, Final, Protocol

from passerelle.a2a_mapping.cards import AgentAddress, PublicEdge, rewrite_card
from passerelle.a2a_mapping.members import as_list, objects_at, text_at, texts_at
from passerelle.core.errors import RemoteError
from passerelle.core.frozen import frozen
from passerelle.core.peer import Peer

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from passerelle.core.commands import ListAgents
    from passerelle.core.payloads.limit import AgentState
    from passerelle.core.peer import PeerCard
    from passerelle.core.principal import Principal
    from passerelle.core.wire.json import Json, JsonObject

PATH: Final = "/agents"
CARD_WAIT_S: Final = 3.0
"""How long one agent may delay the list: an agent whose card was never read is asked for it."""


class RoutedPeer(Peer, Protocol):
    """A peer with its current capacity."""

    @property
    def rests(self) -> bool:
        """Whether its breakers would hold back a send now."""
        ...

    @property
    def is_full(self) -> bool:
        """Whether its limits would hold back a send, as far as known on this instance."""
        ...


class ConfiguredAgents(Protocol):
    """The configured agents; ``PeerRegistry`` is one."""

    @property
    def names(self) -> tuple[str, ...]:
        """In the order of the configuration."""
        ...

    def find(self, name: str) -> RoutedPeer:
        """Raises NotFound for a name that is not configured."""
        ...

    def card_url(self, name: str) -> str:
        """The URL of an agent's card."""
        ...

    def list_breakers(self, name: str) -> Mapping[str, str]:
        """The breaker state of each of its interfaces that was used: ``closed`` if calls pass."""
        ...


def _no_tags(_agent: str) -> frozenset[str]:
    return frozenset()


@frozen
class Catalogue:
    """Lists agents. Without ``public_url`` addresses are relative to the gateway's own."""

    agents: ConfiguredAgents | None = None
    find_tags: Callable[[str], frozenset[str]] = _no_tags
    edge: PublicEdge = field(default_factory=PublicEdge)
    public_url: str | None = None
    find_state: Callable[[str], AgentState] = lambda _agent: "active"
    """Whether an agent gets new work."""

    def rests(self, name: str) -> bool:
        """Whether calls to an agent are held back on every interface that was used."""
        modes = self.agents.list_breakers(name).values() if self.agents else ()
        return bool(modes) and "closed" not in modes

    def list_names(self) -> tuple[str, ...]:
        """Configured names, in the order of the configuration."""
        return self.agents.names if self.agents else ()

    def peek(self, name: str) -> PeerCard | None:
        """The card of a configured agent, if known; the agent is not asked."""
        return self.agents.find(name).peek() if self.agents else None

    async def list(self, principal: Principal, query: ListAgents) -> JsonObject:
        """The agents of the caller, in the order of the configuration."""
        usable = [name for name in self.list_names() if principal.may_call(name)]
        entries = await asyncio.gather(*(self._describe(name) for name in usable))
        return {"agents": as_list([entry for entry in entries if _matches(entry, query)])}

    async def _describe(self, name: str) -> JsonObject:
        tags: list[Json] = [*sorted(self.find_tags(name))]
        base_url = f"{self.public_url or ''}{PATH}/{name}"
        entry: JsonObject = {
            "name": name,
            "url": base_url,
            "tags": tags,
            "state": self.find_state(name),
        }
        peer = await self._load(name)
        if peer is None or self.agents is None:
            return {**entry, "status": "unreachable", "skills": [], "interfaces": []}
        card = rewrite_card(
            peer.card, AgentAddress(name, self.agents.card_url(name), base_url), self.edge
        )
        return {
            **entry,
            "title": text_at(card, "name"),
            "description": text_at(card, "description"),
            "version": text_at(card, "version"),
            "status": "stale" if peer.stale else "ready",
            "signature": peer.signature,
            "skills": card["skills"],
            "interfaces": card["supportedInterfaces"],
        }

    async def _load(self, name: str) -> PeerCard | None:
        if self.agents is None:
            return None
        try:
            return await asyncio.wait_for(self.agents.find(name).describe(), CARD_WAIT_S)
        except (RemoteError, TimeoutError):
            return None


def _matches(entry: JsonObject, query: ListAgents) -> bool:
    skills = objects_at(entry, "skills")
    if query.skill is not None:
        wanted = query.skill.casefold()
        named = {text_at(skill, member).casefold() for skill in skills for member in ("id", "name")}
        if wanted not in named:
            return False
    tags = {*texts_at(entry, "tags"), *(tag for skill in skills for tag in texts_at(skill, "tags"))}
    return query.tag is None or query.tag.casefold() in {tag.casefold() for tag in tags}
