"""The side of a connection that an agent has beside what every client has: the names that it is served under.

The connection owns the socket and gives this its frames; who may serve what is the host's business.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Protocol, assert_never

from passerelle.core.errors import PasserelleError
from passerelle.protocol.frames import Refusal
from passerelle.protocol.reverse_frames import (
    AnswerItem,
    AnswerPiece,
    Done,
    Failed,
    Register,
    Registered,
    Unregister,
    Unregistered,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from passerelle.channels.reverse_link import AgentLink
    from passerelle.core.principal import Principal
    from passerelle.protocol.reverse_frames import HostFrame, ServingFrame, UnregisterCode


class AgentHost(Protocol):
    """Serves agents that dial in."""

    async def register(
        self, principal: Principal, link: AgentLink, frame: Register, leave: Leave
    ) -> Registered:
        """Serves a name over a link from now on; ``leave`` is told when a newer link has it.

        Raises:
            Forbidden: the name is not granted to the principal, or it may serve no agents.
            InvalidInput: no agent of that name dials in, or the card cannot be used.
            StoreUnavailable: nothing is served.
        """
        ...

    async def unregister(self, link: AgentLink, agent: str) -> None:
        """Serves a name no more over this link."""
        ...

    def may_serve(self, principal: Principal, agent: str) -> bool:
        """Whether a name is granted to a principal, as grants stand now."""
        ...


class Leave(Protocol):
    """Tells a link that it has lost a name."""

    def __call__(self, agent: str, code: UnregisterCode) -> None: ...


class AgentSide:
    """What one connection serves. ``spawn`` runs beside the reader and ends with the connection."""

    def __init__(
        self,
        host: AgentHost,
        link: AgentLink,
        find_principal: Callable[[], Principal],
        refuse: Callable[[Refusal], None],
        spawn: Callable[[Coroutine[None, None, None]], object],
    ) -> None:
        self._host = host
        self._link = link
        self._find_principal = find_principal
        self._refuse = refuse
        self._spawn = spawn
        self._served: set[str] = set()
        self._turn = asyncio.Lock()
        """Registrations and their ends are carried out in the order in which they came."""

    def take(self, frame: ServingFrame) -> None:
        """One frame of the agent."""
        match frame:
            case Register():
                self._spawn(self._register(frame))
            case Unregister(agent):
                self._spawn(self._unregister(agent, "asked"))
            case AnswerItem() | AnswerPiece() | Done() | Failed():
                refusal = self._link.take(frame)
                if refusal is not None:
                    self._refuse(refusal)
            case _:
                assert_never(frame)

    def recheck(self) -> None:
        """Grants may have changed: what is not granted any more is not served any more."""
        principal = self._find_principal()
        for agent in tuple(self._served):
            if not self._host.may_serve(principal, agent):
                self._spawn(self._unregister(agent, "forbidden"))

    async def end(self) -> None:
        """The socket has ended."""
        self._link.cut()
        for agent in tuple(self._served):
            self._served.discard(agent)
            await self._host.unregister(self._link, agent)

    async def _register(self, frame: Register) -> None:
        async with self._turn:
            was_served = frame.agent in self._served
            # Before it is known: a socket that ends meanwhile takes the name back.
            self._served.add(frame.agent)
            try:
                registered = await self._host.register(
                    self._find_principal(), self._link, frame, self._leave
                )
            except PasserelleError as error:
                if not was_served:  # else it is served as it was before
                    self._served.discard(frame.agent)
                self._refuse(Refusal(error.stable_code, error.message, of="reg"))
            else:
                self._served.add(frame.agent)
                self._link.send(registered)

    async def _unregister(self, agent: str, code: UnregisterCode) -> None:
        async with self._turn:
            if agent in self._served:
                self._leave(agent, code)
                await self._host.unregister(self._link, agent)

    def _leave(self, agent: str, code: UnregisterCode) -> None:
        self._served.discard(agent)
        frame: HostFrame = Unregistered(agent, code)
        self._link.send(frame)
