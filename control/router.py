"""Chooses an agent for a message to the router: passes the known state of the caller's agents to ``core/routing``.

Nothing is stored and no agent is called, except for unknown cards: a card that was never read is waited for briefly, an
old one is refreshed in the background. An agent whose card cannot be read is not asked again for a while.

Agents in the same state lead to the same ``Route`` object for every caller: turns are templated by it.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final, TypeAlias

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

    from passerelle.control.catalogue import Catalogue, RoutedPeer
    from passerelle.core.payloads.limit import AgentState
    from passerelle.core.payloads.routing import TaskProfileResolved
    from passerelle.core.payloads.tool import ToolCatalogResolved
    from passerelle.core.peer import PeerCard
    from passerelle.core.ports.chance import Clock
    from passerelle.core.principal import Principal
    from passerelle.core.routing.table import ReachedLimit, Route
    from passerelle.core.wire.json import JsonObject
    from passerelle.delegation.runs.peer_profile import PeerTerms
    from passerelle.runtime.limits.costs import Price, Spending
    from passerelle.runtime.limits.pauses import AgentPauses

    Bar: TypeAlias = Callable[[str, str | None, int], str | None]
    """Agent, endpoint and price in millionths: the constraint that excludes the agent, or None."""

_KEPT_ROUTES: Final = 1_024
_LOOK_MS: Final = 1_000
_AGAIN_MS: Final = 10_000
"""Pause before a failed card read is retried."""
_AT_MESSAGE: Final = f"message.metadata.{PROFILE}"


@dataclass(slots=True)
class _KnownAgent:
    """An agent, the inputs of its last description, and its offer per state."""

    peer: RoutedPeer
    card: PeerCard | None
    tags: frozenset[str]
    price: Price | None
    demands: frozenset[str]
    """Extensions that it requires."""
    offer: AgentOffer
    variants: dict[tuple[object, ...], AgentOffer] = field(
        default_factory=dict["tuple[object, ...]", AgentOffer]
    )


@dataclass(slots=True)
class Router:
    """Routes messages. Cards, tags and prices are checked once a second, limits and breakers for each message."""

    catalogue: Catalogue
    find_terms: Callable[[str], PeerTerms]
    spending: Spending
    resolve_tools: Callable[[Principal], ToolCatalogResolved | None]
    """The tools that rules withhold from a caller."""
    clock: Clock
    detach: Callable[[Coroutine[None, None, None]], None]
    """Runs a coroutine in the background."""
    pauses: AgentPauses
    _names: tuple[str, ...] = ()
    _agents: list[_KnownAgent] = field(default_factory=list[_KnownAgent])
    """The configured agents, without tenants."""
    _usable: dict[frozenset[str], list[_KnownAgent]] = field(
        default_factory=dict["frozenset[str]", "list[_KnownAgent]"]
    )
    """The agents of callers with exactly these grants."""
    _routes: OrderedDict[object, tuple[tuple[AgentOffer, ...], Route]] = field(
        default_factory=OrderedDict["object", "tuple[tuple[AgentOffer, ...], Route]"]
    )
    _look_ms: int = 0
    _quiet_until_ms: dict[str, int] = field(default_factory=dict[str, int])
    _reading: dict[str, asyncio.Future[None]] = field(
        default_factory=dict[str, "asyncio.Future[None]"]
    )
    """Card reads in progress, by agent."""

    async def route(
        self,
        principal: Principal,
        profile: TaskProfileResolved,
        held: str | None,
        unpaid: Collection[str] = (),
        bar: Bar | None = None,
    ) -> Route:
        """The route of a caller's message.

        ``held`` is the agent that has its context; ``unpaid`` are agents that the caller's budget does not cover, and
        ``bar`` returns the constraint that keeps the message's task from an agent.
        """
        self._look()
        agents = self._list_usable(principal)
        unread = [one for one in agents if one.card is None]
        if unread:
            await self._read_cards(unread)
        denied, spending = self._list_denied(principal), self.spending
        is_plain = not (denied or unpaid or bar or spending.has_quotas)
        offers = tuple(
            one.offer
            if is_plain
            and not (
                one.demands or one.peer.rests or one.peer.is_full or self.pauses.find(one.peer.name)
            )
            else self._describe(one, principal, denied.get(one.peer.name), unpaid, bar)
            for one in agents
        )
        return self._choose(profile, offers, held if profile.continuity and agents else None)

    def _look(self) -> None:
        """Applies changes of the agents, and refreshes old cards."""
        now_ms, directory = self.clock.now_ms(), self.catalogue.agents
        names = directory.names if directory is not None else ()
        if directory is not None and self._names is not names:
            before = {one.peer.name: one for one in self._agents}
            peers = (directory.find(name) for name in names if find_tenant(name) is None)
            self._agents = [self._describe_agent(peer, before.get(peer.name)) for peer in peers]
            self._names = names
            self._usable.clear()
        elif now_ms < self._look_ms:
            return
        self._look_ms = now_ms + _LOOK_MS
        for one in self._agents:
            if one.peer.fresh is None and one.card is not None:
                self._begin_reading(one.peer, now_ms)
            self._refresh(one)

    def _list_usable(self, principal: Principal) -> list[_KnownAgent]:
        """The agents of a caller, in the order of the configuration."""
        granted = principal.agents
        if principal.operations:
            return self._filter(principal)
        if granted is None:
            return self._agents
        usable = self._usable.get(granted)
        if usable is None:
            if len(self._usable) >= _KEPT_ROUTES:
                self._usable.clear()
            usable = self._usable[granted] = self._filter(principal)
        return usable

    def _filter(self, principal: Principal) -> list[_KnownAgent]:
        return [
            one
            for one in self._agents
            if principal.sees(one.peer.name)
            and principal.may_use(one.peer.name, Method.SEND_MESSAGE)
        ]

    def _choose(
        self, profile: TaskProfileResolved, offers: tuple[AgentOffer, ...], held: str | None
    ) -> Route:
        # Offers are compared by identity: one object per state of an agent, alive as long as the cached route.
        key = (profile, held, tuple(map(id, offers)))
        known = self._routes.pop(key, None)
        if known is None:
            known = offers, choose(profile, offers, held)
            if len(self._routes) >= _KEPT_ROUTES:
                self._routes.popitem(last=False)
        self._routes[key] = known
        return known[1]

    async def _read_cards(self, unread: Sequence[_KnownAgent]) -> None:
        """Waits for cards that were never read; concurrent messages share the reads."""
        now_ms, waited = self.clock.now_ms(), list[asyncio.Future[None]]()
        for one in unread:
            if one.peer.peek() is None:
                reading = self._begin_reading(one.peer, now_ms)
                waited += [] if reading is None else [reading]
        if waited:
            await asyncio.wait(waited)
        for one in unread:
            self._refresh(one)

    def _begin_reading(self, peer: RoutedPeer, now_ms: int) -> asyncio.Future[None] | None:
        """Starts reading a card, once at a time; None if it failed a moment ago."""
        reading = self._reading.get(peer.name)
        if reading is None and self._quiet_until_ms.get(peer.name, 0) <= now_ms:
            self._quiet_until_ms[peer.name] = now_ms + _AGAIN_MS
            reading = self._reading[peer.name] = asyncio.get_running_loop().create_future()
            self.detach(self._read_card(peer, reading))
        return reading

    async def _read_card(self, peer: RoutedPeer, reading: asyncio.Future[None]) -> None:
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
        """By agent, the rule that denies sending work to it."""
        catalog, denied = self.resolve_tools(principal), dict[str, str]()
        for one in catalog.groups if catalog is not None else ():
            if one.peer is not None and one.state == "denied":
                denied[one.peer] = next(iter(one.rules), one.reason or "")
        return denied

    def _describe(
        self,
        one: _KnownAgent,
        principal: Principal,
        denied_by: str | None,
        unpaid: Collection[str],
        bar: Bar | None,
    ) -> AgentOffer:
        """The offer of an agent in its current state; an equal state returns the same object."""
        name, spending = one.peer.name, self.spending
        lacks = one.demands - EXTENSIONS.get()
        is_unpaid = name in unpaid or not spending.covers(principal, name)
        rests, is_full, pause = one.peer.rests, one.peer.is_full, self.pauses.find(name)
        endpoint = one.card.endpoint if one.card is not None else None
        barred = None if bar is None else bar(name, endpoint, one.offer.price_micros or 0)
        if not (lacks or is_unpaid or denied_by or rests or is_full or pause or barred):
            return one.offer
        over_limit: ReachedLimit | None = (
            "quota" if is_unpaid else "rate_limit" if is_full else None
        )
        paused = None if pause is None else _name_pause(pause.state)
        state = (min(lacks, default=None), denied_by, over_limit, rests, paused, barred)
        offer = one.variants.get(state)
        if offer is None:
            offer = one.variants[state] = replace(
                one.offer,
                lacks=state[0],
                denied_by=denied_by,
                constraint=barred,
                over_limit=over_limit,
                rests=rests,
                paused=paused,
            )
        return offer

    def _refresh(self, one: _KnownAgent) -> None:
        """Describes an agent again if its card, tags or price changed."""
        name = one.peer.name
        price = self.spending.find_price(name)
        if (
            one.card is one.peer.peek()
            and one.tags is self.find_terms(name).tags
            and one.price is price
        ):
            return
        found = self._describe_agent(one.peer, one)
        one.card, one.tags, one.price = found.card, found.tags, found.price
        one.demands, one.offer, one.variants = found.demands, found.offer, found.variants

    def _describe_agent(self, peer: RoutedPeer, before: _KnownAgent | None) -> _KnownAgent:
        """The current description of an agent; an unchanged offer keeps its object."""
        tags, price = self.find_terms(peer.name).tags, self.spending.find_price(peer.name)
        found = _describe(peer, peer.peek(), tags, price)
        if before is not None and before.offer == found.offer:
            found.offer, found.variants = before.offer, before.variants
        return found


def _name_pause(state: AgentState) -> str:
    return "being drained" if state == "draining" else "paused"


def read_wanted(message: JsonObject, params: JsonObject | None) -> TaskProfileResolved:
    """The profile of a message: that of its metadata, with the media types that its caller accepts.

    Raises:
        InvalidInput: the profile is invalid; naming the field.
    """
    said = object_at(message, "metadata").get(PROFILE) if "metadata" in message else None
    profile = DEFAULT if said is None else read_profile(said, _AT_MESSAGE)
    if profile.media_types or params is None or "configuration" not in params:
        return profile
    modes = texts_at(object_at(params, "configuration"), "acceptedOutputModes")
    return change(profile, source="caller", media_types=tuple(modes)) if modes else profile


def _describe(
    peer: RoutedPeer, card: PeerCard | None, tags: frozenset[str], price: Price | None
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
        agent=peer.name,
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
    return _KnownAgent(peer, card, tags, price, demands, offer)
