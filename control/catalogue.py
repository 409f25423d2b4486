"""The agents that a caller may use, with their skills: what a chooser of agents needs, without a card per agent.

It says nothing that the card of an agent does not say, and it names nobody whom the caller may not call.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Protocol

from passerelle.a2a_mapping.cards import AgentAddress, PublicEdge, rewrite_card
from passerelle.a2a_mapping.members import as_list, objects_at, text_at, texts_at
from passerelle.core.errors import RemoteError
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
"""How long one agent may hold up the list: an agent that never had a card is asked for it."""


class RoutedPeer(Peer, Protocol):
    """A peer, and whether it takes more work now."""

    @property
    def rests(self) -> bool:
        """Whether a send would be held back by its breakers now."""
        ...

    @property
    def is_full(self) -> bool:
        """Whether a send would be held back by its limits, as far as it is known here."""
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
        """Where the card of an agent is read."""
        ...

    def list_breakers(self, name: str) -> Mapping[str, str]:
        """How the breaker of each of its interfaces that were used stands: ``closed`` where calls go through."""
        ...


def _no_tags(_agent: str) -> frozenset[str]:
    return frozenset()


@dataclass(frozen=True, slots=True)
class Catalogue:
    """Lists agents. Without ``public_url`` addresses are relative to the gateway's own."""

    agents: ConfiguredAgents | None = None
    find_tags: Callable[[str], frozenset[str]] = _no_tags
    edge: PublicEdge = field(default_factory=PublicEdge)
    public_url: str | None = None
    find_state: Callable[[str], AgentState] = lambda _agent: "active"
    """Whether an agent gets work."""

    def rests(self, name: str) -> bool:
        """Whether calls to an agent are held back, over each way that was tried."""
        modes = self.agents.list_breakers(name).values() if self.agents else ()
        return bool(modes) and "closed" not in modes

    def list_names(self) -> tuple[str, ...]:
        """Configured names, in the order of the configuration."""
        return self.agents.names if self.agents else ()

    def peek(self, name: str) -> PeerCard | None:
        """The card of a configured agent as it is known by now; nobody is asked."""
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
