"""Who gets a message to the gateway's own agent: what is known of the caller's agents, put to ``core/routing``.

Nothing is stored and no agent is called, but for a card that is not known: one that was never read is waited for, for a
moment, and one that is old is read again beside the message. An agent whose card cannot be read is left alone for a
while.

Agents in the same state lead to the same ``Route`` object, whoever asks: turns are templated by it.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final

from passerelle.a2a_mapping.extensions import PROFILE, UNDERSTOOD, list_required
from passerelle.a2a_mapping.members import object_at, objects_at, text_at, texts_at
from passerelle.a2a_mapping.rpc import Method
from passerelle.a2a_mapping.v0_3.cards import lift_card
from passerelle.control.catalogue import CARD_WAIT_S
from passerelle.core.agent_name import find_tenant
from passerelle.core.errors import RemoteError
from passerelle.core.routing.profile import DEFAULT, read_profile
from passerelle.core.routing.table import AgentOffer, choose, find_tiers
from passerelle.core.wire.record import change
from passerelle.runtime.common.carried import EXTENSIONS

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Coroutine, Sequence

    from passerelle.control.catalogue import Catalogue, ConfiguredAgents, RoutedPeer
    from passerelle.core.payloads.routing import TaskProfileResolved
    from passerelle.core.payloads.tool import ToolCatalogResolved
    from passerelle.core.peer import Peer, PeerCard
    from passerelle.core.ports.chance import Clock
    from passerelle.core.principal import Principal
    from passerelle.core.routing.table import ReachedLimit, Route
    from passerelle.core.wire.json import JsonObject
    from passerelle.delegation.runs.peer_profile import PeerTerms
    from passerelle.runtime.limits.costs import Price, Spending

_KEPT_ROUTES: Final = 1_024
_AGAIN_MS: Final = 10_000
"""Until a card that could not be read is asked for again."""
_AT_MESSAGE: Final = f"message.metadata.{PROFILE}"


@dataclass(slots=True)
class _KnownAgent:
    """An agent as it was described last: what that was made of, and its offer in the states it was seen in."""

    card: PeerCard | None
    tags: frozenset[str]
    price: Price | None
    demands: frozenset[str]
    offer: AgentOffer
    variants: dict[tuple[object, ...], AgentOffer] = field(
        default_factory=dict["tuple[object, ...]", AgentOffer]
    )


@dataclass(slots=True)
class Router:
    """Routes messages."""

    catalogue: Catalogue
    find_terms: Callable[[str], PeerTerms]
    spending: Spending | None
    resolve_tools: Callable[[Principal], ToolCatalogResolved | None]
    """What is held back from a caller by rules."""
    clock: Clock
    detach: Callable[[Coroutine[None, None, None]], None]
    """Has something run beside the message."""
    _known: dict[str, _KnownAgent] = field(default_factory=dict[str, _KnownAgent])
    _names: tuple[str, ...] = ()
    _peers: list[RoutedPeer] = field(default_factory=list["RoutedPeer"])
    """Of the agents that are configured under these names."""
    _routes: OrderedDict[object, tuple[tuple[AgentOffer, ...], Route]] = field(
        default_factory=OrderedDict["object", "tuple[tuple[AgentOffer, ...], Route]"]
    )
    _quiet_until_ms: dict[str, int] = field(default_factory=dict[str, int])
    _reading: dict[str, asyncio.Future[None]] = field(
        default_factory=dict[str, "asyncio.Future[None]"]
    )
    """Of each agent whose card is asked for, when that is over."""

    async def route(
        self,
        principal: Principal,
        profile: TaskProfileResolved,
        held: str | None,
        unpaid: Collection[str] = (),
    ) -> Route:
        """The choice for a message of a caller.

        ``held`` is the agent that has its context; ``unpaid`` are agents that the caller's budget does not cover.
        """
        agents = self.catalogue.agents
        peers = [] if agents is None else self._list_usable(agents, principal)
        if not peers:
            return self._choose(profile, (), None)
        await self._read_cards(peers)
        denied, wishes = self._list_denied(principal), EXTENSIONS.get()
        offers = tuple(
            self._describe(peer, principal, denied.get(peer.name), wishes, unpaid) for peer in peers
        )
        return self._choose(profile, offers, held if profile.continuity else None)

    def _list_usable(self, agents: ConfiguredAgents, principal: Principal) -> list[RoutedPeer]:
        """The agents of a caller, without their tenants, in the order of the configuration."""
        if self._names is not agents.names:
            self._names = agents.names
            self._peers = [agents.find(name) for name in agents.names if find_tenant(name) is None]
        if principal.agents is None and not principal.operations:
            return self._peers
        return [
            peer
            for peer in self._peers
            if principal.may_call(peer.name) and principal.may_use(peer.name, Method.SEND_MESSAGE)
        ]

    def _choose(
        self, profile: TaskProfileResolved, offers: tuple[AgentOffer, ...], held: str | None
    ) -> Route:
        # Offers are told apart by what they are: one for each state of an agent. They live as long as what is kept.
        key = (profile, held, tuple(map(id, offers)))
        known = self._routes.pop(key, None)
        if known is None:
            known = offers, choose(profile, offers, held)
            if len(self._routes) >= _KEPT_ROUTES:
                self._routes.popitem(last=False)
        self._routes[key] = known
        return known[1]

    async def _read_cards(self, peers: Sequence[RoutedPeer]) -> None:
        """Waits for the cards that were never read, however many messages do so at once."""
        unread = [peer for peer in peers if peer.fresh is None]
        if not unread:
            return
        now_ms, waited = self.clock.now_ms(), list[asyncio.Future[None]]()
        for peer in unread:
            reading = self._reading.get(peer.name)
            if reading is None and self._quiet_until_ms.get(peer.name, 0) <= now_ms:
                self._quiet_until_ms[peer.name] = now_ms + _AGAIN_MS
                reading = self._reading[peer.name] = asyncio.get_running_loop().create_future()
                self.detach(self._read_card(peer, reading))
            if reading is not None and peer.peek() is None:
                waited.append(reading)
        if waited:
            await asyncio.wait(waited)

    async def _read_card(self, peer: Peer, reading: asyncio.Future[None]) -> None:
        try:
            async with asyncio.timeout(CARD_WAIT_S):
                await peer.describe()
        except (RemoteError, TimeoutError):
            return
        else:
            self._quiet_until_ms.pop(peer.name, None)
        finally:
            del self._reading[peer.name]
            reading.set_result(None)

    def _list_denied(self, principal: Principal) -> dict[str, str]:
        """By agent the rule that lets no work go there."""
        catalog, denied = self.resolve_tools(principal), dict[str, str]()
        for one in catalog.groups if catalog is not None else ():
            if one.peer is not None and one.state == "denied":
                denied[one.peer] = next(iter(one.rules), one.reason or "")
        return denied

    def _describe(
        self,
        peer: RoutedPeer,
        principal: Principal,
        denied_by: str | None,
        wishes: frozenset[str],
        unpaid: Collection[str],
    ) -> AgentOffer:
        """An agent as it stands now; an equal state gives the same object."""
        name, card, spending = peer.name, peer.peek(), self.spending
        tags, price = self.find_terms(name).tags, spending.find_price(name) if spending else None
        known = self._known.get(name)
        if (
            known is None
            or known.card is not card
            or known.tags is not tags
            or known.price is not price
        ):
            known = self._remember(name, card, tags, price)
        lacks = known.demands - wishes if known.demands else known.demands
        is_unpaid = name in unpaid or not (spending is None or spending.covers(principal, name))
        rests, is_full = peer.rests, peer.is_full
        if not (lacks or is_unpaid or denied_by or rests or is_full):
            return known.offer
        over_limit: ReachedLimit | None = (
            "quota" if is_unpaid else "rate_limit" if is_full else None
        )
        state = (min(lacks, default=None), denied_by, over_limit, rests)
        offer = known.variants.get(state)
        if offer is None:
            offer = known.variants[state] = replace(
                known.offer, lacks=state[0], denied_by=denied_by, over_limit=over_limit, rests=rests
            )
        return offer

    def _remember(
        self, name: str, card: PeerCard | None, tags: frozenset[str], price: Price | None
    ) -> _KnownAgent:
        """Reads what an agent is like; where another card says the same, its offers stay."""
        found, known = _describe(name, card, tags, price), self._known.get(name)
        if known is not None and known.offer == found.offer:
            found = replace(found, offer=known.offer, variants=known.variants)
        self._known[name] = found
        return found


def read_wanted(message: JsonObject, params: JsonObject | None) -> TaskProfileResolved:
    """The profile of a message: what its metadata says, and the media types that its caller takes.

    Raises:
        InvalidInput: the profile cannot be read; naming the field.
    """
    said = object_at(message, "metadata").get(PROFILE) if "metadata" in message else None
    profile = DEFAULT if said is None else read_profile(said, _AT_MESSAGE)
    if profile.media_types or params is None or "configuration" not in params:
        return profile
    modes = texts_at(object_at(params, "configuration"), "acceptedOutputModes")
    return change(profile, source="caller", media_types=tuple(modes)) if modes else profile


def _describe(
    name: str, card: PeerCard | None, tags: frozenset[str], price: Price | None
) -> _KnownAgent:
    lifted = lift_card(card.card) if card else {}
    skills = objects_at(lifted, "skills")
    named = (text_at(skill, member) for skill in skills for member in ("id", "name"))
    said = {*tags, *(tag for skill in skills for tag in texts_at(skill, "tags"))}
    modes = {
        *texts_at(lifted, "defaultOutputModes"),
        *(mode for skill in skills for mode in texts_at(skill, "outputModes")),
    }
    offer = AgentOffer(
        agent=name,
        tiers=find_tiers(tags),
        tags=frozenset(tag.casefold() for tag in said),
        skills=frozenset(one.casefold() for one in named if one),
        media_types=frozenset(modes),
        card_hash=card.sha256 if card else None,
        streams=card.streaming if card else False,
        price_micros=price.estimate() if price else None,
        currency=price.currency if price else None,
        falters=card.stale if card else False,
    )
    demands = list_required(card.card) - UNDERSTOOD if card else frozenset[str]()
    return _KnownAgent(card, tags, price, demands, offer)
