"""The extended card: an agent's card as one authenticated caller may see it (A2A 1.0 section 3.1.11).

What the agent tells to those who show credentials is asked for with ours, never with the caller's, and kept per agent.
An agent that has no such card, or is away, is shown by its public one: what we announce works on every binding.
"""

from __future__ import annotations

import asyncio
from contextvars import Context
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final, Protocol

import structlog

from passerelle.a2a_mapping.cards import Place, Shape, shape_card
from passerelle.a2a_mapping.errors import ROWS, ErrorKind, ExtendedCardNotConfigured
from passerelle.a2a_mapping.members import object_at
from passerelle.a2a_mapping.v0_3.cards import lift_card
from passerelle.core.peer import Answered, Refused
from passerelle.gateway.a2a.paths import AGENTS

if TYPE_CHECKING:
    from passerelle.core.peer import Peer, PeerOutcome
    from passerelle.core.ports.chance import Clock
    from passerelle.core.wire.json import JsonObject
    from passerelle.gateway.a2a.cards import CardOptions
    from passerelle.gateway.a2a.operations import Call

PRIVATE: Final = {"cache-control": "private, max-age=60", "vary": "Authorization, A2A-Version"}
"""Headers of an answer that holds one: no cache that callers share may keep it."""
_FRESH_MS: Final = 600_000
_RETRY_MS: Final = 10_000
_NOT_CONFIGURED: Final = ROWS[ErrorKind.EXTENDED_AGENT_CARD_NOT_CONFIGURED].jsonrpc


class ExtendedPeers(Protocol):
    """The agents, and what they tell to those who show credentials; ``PeerRegistry`` is one."""

    def find(self, name: str) -> Peer:
        """Raises NotFound for a name that is not configured."""
        ...

    def card_url(self, name: str) -> str:
        """Where the card of an agent is read."""
        ...

    async def read_extended_card(self, name: str) -> PeerOutcome:
        """GetExtendedAgentCard with our credentials; the card may be of 0.3."""
        ...


@dataclass(slots=True)
class _Kept:
    """What an agent said last. ``card`` None: it has no extended card, or has not said."""

    sha256: str = ""
    card: JsonObject | None = None
    configured: bool = True
    until_ms: int = 0
    asking: asyncio.Lock = field(default_factory=asyncio.Lock)


class PeerExtendedCards:
    """Renders extended cards. Implements ``gateway.a2a.ports.ExtendedCards``."""

    def __init__(
        self,
        peers: ExtendedPeers,
        options: CardOptions,
        clock: Clock,
        *,
        public_url: str | None,
        local_url: str,
    ) -> None:
        """``public_url`` is where callers reach us; without it they are believed, and ``local_url`` is the rest."""
        self._peers = peers
        self._options = replace(options, edge=replace(options.edge, extended=True))
        self._public_url = public_url
        self._local_url = local_url
        self._clock = clock
        self._kept: dict[str, _Kept] = {}

    async def render(self, call: Call) -> JsonObject:
        """The card, in the form of the caller's version.

        Raises:
            ExtendedCardNotConfigured: the agent announces one and has none.
            PeerUnavailable: the agent never had a card.
        """
        card = await self._read(call.agent)
        if not call.principal.may_call(call.agent):
            # Who may only read tasks is told of nothing that it could ask for.
            card = {**card, "skills": []}
        reached = self._public_url or call.own_url or self._local_url
        card_url = self._peers.card_url(call.agent)
        place = Place(call.agent, card_url, f"{reached}{AGENTS}/{call.agent}")
        shape: Shape = "v0.3" if call.version == "0.3" else "v1"
        return shape_card(self._options.compose(card, place), shape)

    async def _read(self, agent: str) -> JsonObject:
        public = await self._peers.find(agent).describe()
        if not object_at(lift_card(public.card), "capabilities").get("extendedAgentCard"):
            return public.card
        kept = self._kept.setdefault(agent, _Kept())
        async with kept.asking:
            if kept.sha256 != public.sha256 or self._clock.now_ms() >= kept.until_ms:
                await self._ask(agent, kept, public.sha256)
        if not kept.configured:
            raise ExtendedCardNotConfigured(f"agent {agent!r} has no extended card")
        return kept.card or public.card

    async def _ask(self, agent: str, kept: _Kept, sha256: str) -> None:
        # In a context of its own: what is kept for everybody may not be asked for with one caller's token.
        loop = asyncio.get_running_loop()
        outcome = await loop.create_task(self._peers.read_extended_card(agent), context=Context())
        fresh_ms = _FRESH_MS
        match outcome:
            case Answered(result):
                kept.card, kept.configured = result, True
            case Refused(code=code) if code == _NOT_CONFIGURED:
                kept.card, kept.configured = None, False
            case _:
                fresh_ms = _RETRY_MS
                if kept.sha256 != sha256:
                    kept.card, kept.configured = None, True
                reason = getattr(outcome, "reason", getattr(outcome, "message", ""))
                structlog.get_logger().warning("card.extended", agent=agent, reason=reason)
        kept.sha256, kept.until_ms = sha256, self._clock.now_ms() + fresh_ms
