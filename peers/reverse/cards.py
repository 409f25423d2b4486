"""The cards of agents that dial in: the last one that an agent sent, to any instance."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

from passerelle.core.errors import PeerUnavailable, StoreUnavailable
from passerelle.core.frozen import frozen
from passerelle.peers.card import KnownCard, read_dial_in_card
from passerelle.peers.cards import verify_card

if TYPE_CHECKING:
    from passerelle.core.ports.agents import DialedInAgents
    from passerelle.core.ports.chance import Clock
    from passerelle.peers.config import PeerConfig
    from passerelle.peers.reverse.local import LocalLinks
    from passerelle.peers.signatures import CardJudge

_FRESH_MS: Final = 10_000
"""A new card is announced at once; this covers a lost notification."""


class DialInCards:
    """``peers.cards.Cards`` from the store. The card of an agent without a link is stale."""

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
        """The last valid card."""
        return self._known

    @property
    def fresh(self) -> KnownCard | None:
        """The last card, if it needs no request to the store."""
        return self._known if self._clock.now_ms() < self._fresh_until_ms else None

    async def judge(self, raw: bytes) -> KnownCard:
        """Checks the card in these bytes.

        Raises:
            InvalidAgentResponse: it is invalid; ``details`` name the fault.
        """
        return await verify_card(self._config, self._judge, read_dial_in_card(self._config, raw))

    async def load(self) -> KnownCard:
        """The last card.

        Raises:
            PeerUnavailable: the agent has never dialled in, or the store does not answer.
            InvalidAgentResponse: its card is invalid.
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
        """Makes the next ``load`` ask the store. A read in progress may be older than the change: it is used once."""
        self._expired += 1
        self._fresh_until_ms = 0

    def _report(self, reason: str) -> PeerUnavailable:
        name = self._config.name
        return PeerUnavailable(f"agent {name}: {reason}", peer=name, reason=reason)


@frozen
class DialInState:
    """What all instances know about agents that dial in, and the sockets of this instance."""

    agents: DialedInAgents
    links: LocalLinks
