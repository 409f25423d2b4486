"""The peers of this process by their configured names."""

from __future__ import annotations

from typing import TYPE_CHECKING

from passerelle.core.agent_name import find_base
from passerelle.core.errors import ConfigInvalid, NotFound
from passerelle.core.read_models.agent_health import AgentLimits
from passerelle.peers.assembly import Connections, make_peer
from passerelle.peers.config import UNLIMITED
from passerelle.peers.sessions import PeerSessions

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from passerelle.core.peer import PeerCard, PeerOutcome
    from passerelle.core.ports.chance import Clock
    from passerelle.peers.agent import AgentPeer
    from passerelle.peers.config import PeerConfig
    from passerelle.peers.reverse.cards import DialInState
    from passerelle.runtime.common.breaker import BreakerMode
    from passerelle.runtime.limits.limit import Limit
    from passerelle.runtime.limits.limiter import Limiter
    from passerelle.runtime.memory.room import MemoryRoom
    from passerelle.runtime.observability.spans import Spans


class PeerRegistry:
    """Finds peers. A reload replaces all of them at once; calls under way keep the peer they began with."""

    def __init__(
        self,
        configs: Iterable[PeerConfig],
        clock: Clock,
        limiter: Limiter | None = None,
        count: Callable[[str, str], None] = lambda _agent, _outcome: None,
        spans: Spans | None = None,
        dial_in: DialInState | None = None,
        memory: MemoryRoom | None = None,
    ) -> None:
        """``limiter`` shares the limits of peers with other instances; without one nothing is limited.

        ``count`` hears of each call: the name of the agent, and how it ended. ``memory`` is what large answers draw on.
        """
        self._clock = clock
        self._limiter = limiter
        self._count = count
        self._spans = spans
        self._dial_in = dial_in
        self._limits: dict[str, Limit] = {}
        self._connections = Connections(PeerSessions(memory=memory))
        self._peers: Mapping[str, AgentPeer] = {}
        self.names: tuple[str, ...] = ()
        """In the order of the configuration; another object after each reload."""
        self.replace(configs)

    def find(self, name: str) -> AgentPeer:
        """The peer of that name.

        Raises:
            NotFound: no such agent is configured.
        """
        peer = self._peers.get(name)
        if peer is None:
            raise NotFound("agent", name)
        return peer

    @property
    def dial_in_names(self) -> tuple[str, ...]:
        """The names of those that dial in."""
        return tuple(name for name, peer in self._peers.items() if peer.config.dials_in)

    def dials_in(self, name: str) -> bool:
        """Whether there is an agent of that name, and it dials in."""
        return name in self._peers and self._peers[name].config.dials_in

    def count_links(self, name: str) -> int:
        """Over how many sockets an agent that dials in is linked to this instance."""
        return len(self._dial_in.links.list(name)) if self._dial_in else 0

    def find_dial_in(self, name: str) -> AgentPeer:
        """The peer of that name, which dials in.

        Raises:
            NotFound: no such agent is configured.
        """
        peer = self.find(name)
        if not peer.config.dials_in:
            raise NotFound("agent", name)
        return peer

    def card_url(self, name: str) -> str:
        """Where the card of that peer is read.

        Raises:
            NotFound: no such agent is configured.
        """
        return self.find(name).config.card_url

    def peek(self, name: str) -> PeerCard | None:
        """The card of that peer as far as it is known; nobody is asked for it."""
        return self.find(name).peek()

    def list_cards(self) -> dict[str, str]:
        """The hash of the card of each peer that has one, by name."""
        cards = ((name, peer.peek()) for name, peer in self._peers.items())
        return {name: card.sha256 for name, card in cards if card is not None}

    def list_breakers(self, name: str) -> dict[str, BreakerMode]:
        """How the breakers of that peer stand, by interface."""
        return self.find(name).list_breakers()

    def describe_limits(self, name: str) -> AgentLimits:
        """What the configuration allows of calls to that peer, and what of it is used here.

        Raises:
            NotFound: no such agent is configured.
        """
        peer, known = self.find(name), self._limits.get(find_base(name))
        concurrency, rate = peer.config.bounds.concurrency, peer.config.bounds.rate
        return AgentLimits(
            concurrency=concurrency,
            rate=rate.units if rate else None,
            rate_s=rate.per_ms / 1000 if rate else None,
            in_use=known.used if known and concurrency is not None else None,
            used_up=peer.is_full,
        )

    async def read_extended_card(self, name: str) -> PeerOutcome:
        """What the peer of that name says of itself to those who show credentials, in its own form.

        Raises:
            NotFound: no such agent is configured.
        """
        return await self.find(name).read_extended_card()

    def replace(self, configs: Iterable[PeerConfig]) -> None:
        """Swaps in the peers of a new configuration; one whose configuration is equal stays, with its card.

        Raises:
            ConfigInvalid: a name stands twice; nothing is changed then.
        """
        made: dict[str, AgentPeer] = {}
        for config in configs:
            if config.name in made:
                raise ConfigInvalid(f"agents.{config.name}", "the name stands twice")
            old = self._peers.get(config.name)
            made[config.name] = old if old and old.config == config else self._make(config)
        self._peers = made
        self.names = tuple(made)

    def _make(self, config: PeerConfig) -> AgentPeer:
        limit = self._bind(config)
        return make_peer(
            config,
            self._connections,
            self._clock,
            limit,
            self._count,
            self._spans,
            self._dial_in,
        )

    def _bind(self, config: PeerConfig) -> Limit | None:
        """The limit of an agent and its tenants. It outlives reloads, so that calls under way are still counted."""
        base = find_base(config.name)
        known = self._limits.get(base)
        if known is not None:
            known.rebind(config.bounds)
        elif self._limiter is not None and config.bounds != UNLIMITED:
            known = self._limits[base] = self._limiter.open(f"agent:{base}", config.bounds)
        return known

    async def close(self) -> None:
        """Closes all connections to peers; calls after that are ``Unreached``."""
        await self._connections.close()
