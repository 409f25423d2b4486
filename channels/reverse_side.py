"""The serving side of an agent's connection: the agent names that it registers.

The connection owns the socket and passes its frames on; the host decides who may serve which name.
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
        self, principal: Principal, link: AgentLink, frame: Register, leave: UnregisterCallback
    ) -> Registered:
        """Serves a name over a link from now on; ``leave`` is called when a newer link takes it over.

        Raises:
            Forbidden: the name is not granted to the principal, or it may serve no agents.
            InvalidInput: no dial-in agent of that name is configured, or the card is invalid.
            StoreUnavailable: nothing is served.
        """
        ...

    async def unregister(self, link: AgentLink, agent: str) -> None:
        """Stops serving a name over this link."""
        ...

    def may_serve(self, principal: Principal, agent: str) -> bool:
        """Whether a name is currently granted to a principal."""
        ...


class UnregisterCallback(Protocol):
    """Notifies a link that it has lost a name."""

    def __call__(self, agent: str, code: UnregisterCode) -> None: ...


class AgentSide:
    """The names that one connection serves. ``spawn`` runs a coroutine that ends with the connection."""

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
        """Registrations and their ends are carried out in order of arrival."""

    @property
    def waits(self) -> bool:
        """Whether no frames may be passed on now."""
        return self._link.waits

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
        """Checks the grants again, and stops serving names that are no longer granted."""
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
            # Before the result is known: a socket that ends meanwhile gives the name back.
            self._served.add(frame.agent)
            try:
                registered = await self._host.register(
                    self._find_principal(), self._link, frame, self._leave
                )
            except PasserelleError as error:
                if not was_served:  # otherwise the earlier registration stays
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
