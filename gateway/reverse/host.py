"""Serves agents that dial in: implements ``channels.reverse_side.AgentHost``, and notifies all instances.

A name belongs to the newest link, unless the operator lets several agents share it. The store decides which link that
is; its notification may be lost, so each link checks regularly whether it still has its name.
"""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Final, assert_never

import orjson

from passerelle.core.errors import (
    Forbidden,
    InvalidInput,
    NotFound,
    PasserelleError,
    StoreUnavailable,
)
from passerelle.core.ports.agents import AgentCancelled, AgentOffered, AgentRegistered
from passerelle.peers.reverse.cards import DialInCards
from passerelle.peers.reverse.local import LinkedAgent
from passerelle.protocol.concurrency import cancel_all, keep_until_done
from passerelle.protocol.reverse_frames import Registered
from passerelle.runtime.common.beat import sleep_until_beat

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Coroutine

    from structlog.typing import FilteringBoundLogger

    from passerelle.channels.reverse_link import AgentLink
    from passerelle.channels.reverse_side import UnregisterCallback
    from passerelle.core.ports.agents import AgentUpdate
    from passerelle.core.principal import Principal
    from passerelle.gateway.reverse.routing import Routing
    from passerelle.peers.registry import PeerRegistry
    from passerelle.peers.reverse.cards import DialInState
    from passerelle.protocol.reverse_frames import Register

HOLD_MS: Final = 45_000
"""How long a link is valid after its instance last confirmed it."""
ROUND_S: Final = 10.0


@dataclass(slots=True)
class Host:
    """The links of this instance. ``run`` listens for changes and renews the links."""

    dial_in: DialInState
    peers: PeerRegistry
    routing: Routing
    instance: str
    log: FilteringBoundLogger
    round_s: float = ROUND_S
    _listens: set[str] = field(default_factory=set[str])
    _work: set[asyncio.Task[None]] = field(default_factory=set["asyncio.Task[None]"])

    # ------------------------------------------------------------ one link

    def may_serve(self, principal: Principal, agent: str) -> bool:
        """Whether the principal may serve the name."""
        return principal.may_serve(agent) and agent in self.peers.dial_in_names

    async def register(
        self, principal: Principal, link: AgentLink, frame: Register, leave: UnregisterCallback
    ) -> Registered:
        """Serves a name over a link from now on.

        Raises:
            Forbidden: the name is not granted to the principal.
            InvalidInput: no agent of that name dials in.
            InvalidAgentResponse: the card cannot be used.
            StoreUnavailable: the store does not answer; nothing is served.
        """
        agent = frame.agent
        if not principal.may_serve(agent):
            raise Forbidden("the name is not granted to this credential", agent=agent)
        try:
            peer = self.peers.find_dial_in(agent)
        except NotFound:
            raise InvalidInput("agent", "no agent of this name dials in") from None
        raw, cards = orjson.dumps(frame.card), peer.cards
        if isinstance(cards, DialInCards):
            await cards.judge(raw)
        await self._listen(agent)
        generation = await self.dial_in.agents.register(
            agent, link.connection, self.instance, raw, hold_ms=HOLD_MS, pool=peer.config.pool
        )
        served = LinkedAgent(agent, link, generation, frame.most, leave)
        self.dial_in.links.add(served)
        self._on_change(agent, AgentRegistered(link.connection, generation, peer.config.pool))
        self.log.info("agent.linked", agent=agent, link=link.connection, generation=generation)
        self._spawn(self.routing.take_waiting(agent))
        return Registered(agent, f"/agents/{agent}", generation)

    async def unregister(self, link: AgentLink, agent: str) -> None:
        """Stops serving a name over this link; does nothing the second time."""
        served = self.dial_in.links.remove(agent, link)
        if served is not None:
            # The caller may be cancelled with its connection, and the link would stay registered.
            await asyncio.shield(self._spawn(self._forget(served)))

    async def _forget(self, served: LinkedAgent) -> None:
        agent, link = served.agent, served.link.connection
        self.log.info("agent.left", agent=agent, link=link, generation=served.generation)
        with suppress(StoreUnavailable):  # its registration expires by itself
            await self.dial_in.agents.unregister(agent, link)
        self._expire(agent)

    def _lose(self, served: LinkedAgent) -> None:
        """Removes a link whose name a newer link has. Later answers of its calls are ignored."""
        if self.dial_in.links.remove(served.agent, served.link) is None:
            return
        served.leave(served.agent, "superseded")
        served.link.cut(served.agent)
        self.log.info("agent.superseded", agent=served.agent, link=served.link.connection)

    def _expire(self, agent: str) -> None:
        with suppress(NotFound):
            self.peers.find_dial_in(agent).cards.expire()

    # ------------------------------------------------------------ all instances

    async def run(self) -> None:
        """Runs until cancelled."""
        try:
            while True:
                await self._guard(self._refresh())
                await sleep_until_beat(self.round_s)
        finally:
            await cancel_all(self._work)

    async def _refresh(self) -> None:
        for agent in self.peers.dial_in_names:
            await self._listen(agent)
        for served in self.dial_in.links.list():
            await self._keep(served)
        for agent in self.peers.dial_in_names:
            await self.routing.follow_agent(agent)

    async def _keep(self, served: LinkedAgent) -> None:
        kept = await self.dial_in.agents.keep(
            served.agent, served.link.connection, self.instance, served.generation, hold_ms=HOLD_MS
        )
        if not kept:
            self._lose(served)

    async def _listen(self, agent: str) -> None:
        if agent in self._listens:
            return
        self._listens.add(agent)
        try:
            await self.dial_in.agents.listen(agent, partial(self._on_change, agent))
        except BaseException:
            self._listens.discard(agent)
            raise

    def _on_change(self, agent: str, change: AgentUpdate) -> None:
        links = self.dial_in.links
        match change:
            case AgentRegistered(link, generation, pool):
                self._expire(agent)
                for served in links.list(agent):
                    is_older = served.generation < generation and served.link.connection != link
                    if is_older and not pool:
                        self._lose(served)
                self._spawn(self.routing.follow_agent(agent))
            case AgentOffered(task, turn):
                if links.holds(agent):
                    self._spawn(self.routing.take(agent, task, turn))
            case AgentCancelled(remote):
                if links.holds(agent):
                    self._spawn(self.routing.stop(agent, remote))
            case _:
                assert_never(change)

    def _spawn(self, work: Coroutine[None, None, None]) -> asyncio.Task[None]:
        return keep_until_done(asyncio.create_task(self._guard(work)), self._work)

    async def _guard(self, work: Coroutine[None, None, None]) -> None:
        try:
            await work
        except PasserelleError as error:
            self.log.info("agent.late", reason=error.message)  # the due row starts it again
        except Exception:
            self.log.exception("agent.fault")


@asynccontextmanager
async def open_host(peers: PeerRegistry, routing: Routing, instance: str) -> AsyncGenerator[Host]:
    """The running host of one instance."""
    host = Host(routing.dial_in, peers, routing, instance, routing.dispatch.log)
    running = asyncio.create_task(host.run(), name="agents")
    try:
        yield host
    finally:
        await cancel_all([running])
