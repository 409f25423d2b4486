"""What peers that dial in are made of: the card that an agent brought last, to whichever instance it came."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from passerelle.core.errors import PeerUnavailable, StoreUnavailable
from passerelle.peers.card import KnownCard, read_dial_in_card
from passerelle.peers.cards import verify_card

if TYPE_CHECKING:
    from passerelle.core.ports.agents import DialedInAgents
    from passerelle.core.ports.chance import Clock
    from passerelle.peers.config import PeerConfig
    from passerelle.peers.reverse.local import LocalLinks
    from passerelle.peers.signatures import CardJudge

_FRESH_MS: Final = 10_000
"""A newer card is told at once; this is for a word that was lost."""


class DialInCards:
    """``peers.cards.Cards`` out of the store. An agent that is not linked anywhere has a stale card."""

    def __init__(
        self, config: PeerConfig, agents: DialedInAgents, judge: CardJudge, clock: Clock
    ) -> None:
        self._config = config
        self._agents = agents
        self._judge = judge
        self._clock = clock
        self._known: KnownCard | None = None
        self._fresh_until_ms = 0
        self._expired = 0

    @property
    def known(self) -> KnownCard | None:
        """What was read last and could be used."""
        return self._known

    @property
    def fresh(self) -> KnownCard | None:
        """The last card, where the store need not be asked for it."""
        return self._known if self._clock.now_ms() < self._fresh_until_ms else None

    async def judge(self, raw: bytes) -> KnownCard:
        """The card in these bytes.

        Raises:
            InvalidAgentResponse: it cannot be used; ``details`` say where it is wrong.
        """
        return await verify_card(self._config, self._judge, read_dial_in_card(self._config, raw))

    async def load(self) -> KnownCard:
        """The last card.

        Raises:
            PeerUnavailable: the agent has never dialled in, or nobody can tell.
            InvalidAgentResponse: its card cannot be used here.
        """
        if (fresh := self.fresh) is not None:
            return fresh
        now_ms, expired = self._clock.now_ms(), self._expired
        try:
            served = await self._agents.read(self._config.name)
        except StoreUnavailable as error:
            if self._known is None:
                raise self._report(error.reason) from error
            return self._known
        if served is None:
            raise self._report("it has never dialled in")
        known = await self.judge(served.card)
        self._known = replace(known, card=replace(known.card, stale=not served.links))
        if expired == self._expired:
            self._fresh_until_ms = now_ms + _FRESH_MS
        return self._known

    def expire(self) -> None:
        """The next ``load`` asks the store. A read that is under way may be older than the news: it is used once."""
        self._expired += 1
        self._fresh_until_ms = 0

    def _report(self, reason: str) -> PeerUnavailable:
        name = self._config.name
        return PeerUnavailable(f"agent {name}: {reason}", peer=name, reason=reason)


@dataclass(frozen=True, slots=True)
class DialInState:
    """What all instances know of such agents, and the sockets of this one."""

    agents: DialedInAgents
    links: LocalLinks
