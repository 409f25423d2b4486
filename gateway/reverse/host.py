"""Serves agents that dial in: implements ``channels.reverse_side.AgentHost``, and has all instances told of it.

A name belongs to the newest link, unless the operator lets several serve it. The store says who that is; the word of it
may be lost, so each link asks from time to time whether it still has its name.
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
from passerelle.peers.reverse.cards import BroughtCards
from passerelle.peers.reverse.local import Served
from passerelle.protocol.reverse_frames import Registered
from passerelle.runtime.common.beat import sleep_until_beat

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Coroutine

    from structlog.typing import FilteringBoundLogger

    from passerelle.channels.reverse_link import AgentLink
    from passerelle.channels.reverse_side import Leave
    from passerelle.core.ports.agents import AgentUpdate
    from passerelle.core.principal import Principal
    from passerelle.gateway.reverse.routing import Routing
    from passerelle.peers.registry import PeerRegistry
    from passerelle.peers.reverse.cards import Dialling
    from passerelle.protocol.reverse_frames import Register

HOLD_MS: Final = 45_000
"""How long a link counts whose instance says nothing more."""
ROUND_S: Final = 10.0


@dataclass(slots=True)
class Host:
    """The links of this instance. ``run`` listens, and keeps what is noted of them."""

    dialling: Dialling
    peers: PeerRegistry
    routing: Routing
    instance: str
    log: FilteringBoundLogger
    round_s: float = ROUND_S
    _listens: set[str] = field(default_factory=set[str])
    _work: set[asyncio.Task[None]] = field(default_factory=set["asyncio.Task[None]"])

    # ------------------------------------------------------------ one link

    def may_serve(self, principal: Principal, agent: str) -> bool:
        """Whether the name is granted."""
        return principal.may_serve(agent) and agent in self.peers.dialling

    async def register(
        self, principal: Principal, link: AgentLink, frame: Register, leave: Leave
    ) -> Registered:
        """Serves a name over a link from now on.

        Raises:
            Forbidden: the name is not granted to the principal.
            InvalidInput: no agent of that name dials in.
            InvalidAgentResponse: the card cannot be used.
            StoreUnavailable: nothing is served.
        """
        agent = frame.agent
        if not principal.may_serve(agent):
            raise Forbidden("the name is not granted to this credential", agent=agent)
        try:
            peer = self.peers.find_dialled(agent)
        except NotFound:
            raise InvalidInput("agent", "no agent of this name dials in") from None
        raw, cards = orjson.dumps(frame.card), peer.cards
        if isinstance(cards, BroughtCards):
            await cards.judge(raw)
        await self._listen(agent)
        generation = await self.dialling.agents.register(
            agent, link.connection, self.instance, raw, hold_ms=HOLD_MS, pool=peer.config.pool
        )
        served = Served(agent, link, generation, frame.most, leave)
        self.dialling.links.add(served)
        self._hear(agent, AgentRegistered(link.connection, generation, peer.config.pool))
        self.log.info("agent.linked", agent=agent, link=link.connection, generation=generation)
        self._spawn(self.routing.take_waiting(agent))
        return Registered(agent, f"/agents/{agent}", generation)

    async def unregister(self, link: AgentLink, agent: str) -> None:
        """Serves a name no more over this link; told twice, it does nothing the second time."""
        served = self.dialling.links.remove(agent, link)
        if served is not None:
            # Whoever asked may be cancelled with the connection that it asked on, and the link would stand on.
            await asyncio.shield(self._spawn(self._forget(served)))

    async def _forget(self, served: Served) -> None:
        agent, link = served.agent, served.link.connection
        self.log.info("agent.left", agent=agent, link=link, generation=served.generation)
        with suppress(StoreUnavailable):  # it is forgotten by itself when its time is over
            await self.dialling.agents.unregister(agent, link)
        self._expire(agent)

    def _lose(self, served: Served) -> None:
        """A newer link has the name. What the older one still says about calls is not heard any more."""
        if self.dialling.links.remove(served.agent, served.link) is None:
            return
        served.leave(served.agent, "superseded")
        served.link.cut(served.agent)
        self.log.info("agent.superseded", agent=served.agent, link=served.link.connection)

    def _expire(self, agent: str) -> None:
        with suppress(NotFound):
            self.peers.find_dialled(agent).cards.expire()

    # ------------------------------------------------------------ all instances

    async def run(self) -> None:
        """Works until cancelled."""
        try:
            while True:
                await self._guard(self._look_around())
                await sleep_until_beat(self.round_s)
        finally:
            for task in tuple(self._work):
                task.cancel()
            await asyncio.gather(*self._work, return_exceptions=True)

    async def _look_around(self) -> None:
        for agent in self.peers.dialling:
            await self._listen(agent)
        for served in self.dialling.links.list():
            await self._keep(served)
        for agent in self.peers.dialling:
            await self.routing.follow_agent(agent)

    async def _keep(self, served: Served) -> None:
        kept = await self.dialling.agents.keep(
            served.agent, served.link.connection, self.instance, served.generation, hold_ms=HOLD_MS
        )
        if not kept:
            self._lose(served)

    async def _listen(self, agent: str) -> None:
        if agent in self._listens:
            return
        self._listens.add(agent)
        try:
            await self.dialling.agents.listen(agent, partial(self._hear, agent))
        except BaseException:
            self._listens.discard(agent)
            raise

    def _hear(self, agent: str, news: AgentUpdate) -> None:
        links = self.dialling.links
        match news:
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
                assert_never(news)

    def _spawn(self, work: Coroutine[None, None, None]) -> asyncio.Task[None]:
        task = asyncio.create_task(self._guard(work))
        self._work.add(task)
        task.add_done_callback(self._work.discard)
        return task

    async def _guard(self, work: Coroutine[None, None, None]) -> None:
        try:
            await work
        except PasserelleError as error:
            self.log.info("agent.late", reason=error.message)  # the due row brings it up again
        except Exception:
            self.log.exception("agent.fault")


@asynccontextmanager
async def open_host(peers: PeerRegistry, routing: Routing, instance: str) -> AsyncGenerator[Host]:
    """The host of one instance, at work."""
    host = Host(routing.dialling, peers, routing, instance, routing.dispatch.log)
    running = asyncio.create_task(host.run(), name="agents")
    try:
        yield host
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
