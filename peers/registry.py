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
    """Finds peers. A reload replaces all of them at once; calls in progress keep the peer they started with."""

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

        ``count(agent, outcome)`` is called after each call. Large answers draw on ``memory``.
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
        """In the order of the configuration; a new tuple after each reload."""
        self.replace(configs)

    def find(self, name: str) -> AgentPeer:
        """The peer with that name.

        Raises:
            NotFound: no such agent is configured.
        """
        peer = self._peers.get(name)
        if peer is None:
            raise NotFound("agent", name)
        return peer

    @property
    def dial_in_names(self) -> tuple[str, ...]:
        """The names of agents that dial in."""
        return tuple(name for name, peer in self._peers.items() if peer.config.dials_in)

    def dials_in(self, name: str) -> bool:
        """Whether an agent with that name exists and dials in."""
        return name in self._peers and self._peers[name].config.dials_in

    def count_links(self, name: str) -> int:
        """The number of sockets that link a dial-in agent to this instance."""
        return len(self._dial_in.links.list(name)) if self._dial_in else 0

    def find_dial_in(self, name: str) -> AgentPeer:
        """The dial-in peer with that name.

        Raises:
            NotFound: no such agent dials in.
        """
        peer = self.find(name)
        if not peer.config.dials_in:
            raise NotFound("agent", name)
        return peer

    def card_url(self, name: str) -> str:
        """The URL of that peer's card.

        Raises:
            NotFound: no such agent is configured.
        """
        return self.find(name).config.card_url

    def peek(self, name: str) -> PeerCard | None:
        """The card of that peer as far as it is known; sends no request."""
        return self.find(name).peek()

    def list_cards(self) -> dict[str, str]:
        """The card hash of each peer that has a card, by name."""
        cards = ((name, peer.peek()) for name, peer in self._peers.items())
        return {name: card.sha256 for name, card in cards if card is not None}

    def list_breakers(self, name: str) -> dict[str, BreakerMode]:
        """The breaker mode of each interface of that peer."""
        return self.find(name).list_breakers()

    def describe_limits(self, name: str) -> AgentLimits:
        """The configured limits of calls to that peer, and their usage here.

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
        """That peer's extended card, in its own form.

        Raises:
            NotFound: no such agent is configured.
        """
        return await self.find(name).read_extended_card()

    def replace(self, configs: Iterable[PeerConfig]) -> None:
        """Replaces the peers by those of a new configuration; one with an equal configuration stays, with its card.

        Raises:
            ConfigInvalid: a name is listed twice; nothing is changed then.
        """
        made: dict[str, AgentPeer] = {}
        for config in configs:
            if config.name in made:
                raise ConfigInvalid(f"agents.{config.name}", "the name is listed twice")
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
        """The limit of an agent and its tenants. It outlives reloads, so that calls in progress are still counted."""
        base = find_base(config.name)
        known = self._limits.get(base)
        if known is not None:
            known.rebind(config.bounds)
        elif self._limiter is not None and config.bounds != UNLIMITED:
            known = self._limits[base] = self._limiter.open(f"agent:{base}", config.bounds)
        return known

    async def close(self) -> None:
        """Closes all connections to peers; later calls are ``Unreached``."""
        await self._connections.close()
