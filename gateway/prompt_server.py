"""uvicorn's server without its signals and its fixed waits: it ends when it is told to, as soon as it can.

uvicorn asks ten times a second whether it shall end, and waits a tenth of a second after it has told its connections,
whether there were any or not.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Generator
from typing import TYPE_CHECKING, Final

import structlog
import uvicorn

if TYPE_CHECKING:
    from uvicorn.server import Protocols

_TICK_S: Final = 1.0
_HANDSHAKE_S: Final = 15.0
"""For TLS, as for the head of a request."""
_LOOK_S: Final = 0.005
_TURNS: Final = 5
"""Turns of the loop until a connection that was accepted just now is among those that are known."""


class PromptServer(uvicorn.Server):
    """Ends by ``end`` alone: uvicorn's signal handlers raise the signal again and so change the exit status.

    Answers under way have the ``timeout_graceful_shutdown`` of the configuration. The lifespan protocol is not spoken.
    """

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self._ending = asyncio.Event()

    def end(self) -> None:
        """Has it accept nothing more, and close."""
        self.should_exit = True
        self._ending.set()

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None]:
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        loop = asyncio.get_running_loop()
        tls = self.config.ssl
        self.servers = [
            await loop.create_server(
                self._make_protocol,
                sock=bound,
                ssl=tls,
                backlog=self.config.backlog,
                ssl_handshake_timeout=_HANDSHAKE_S if tls else None,
            )
            for bound in sockets or ()
        ]
        self.started = True

    def _make_protocol(self) -> asyncio.Protocol:
        make = self.config.http_protocol_class
        return make(config=self.config, server_state=self.server_state, app_state={})  # type: ignore[call-arg]

    async def main_loop(self) -> None:
        # Each tick draws the Date header anew, which has whole seconds.
        while not await self.on_tick(0):
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._ending.wait(), _TICK_S)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        for server in self.servers:
            server.close()
        for bound in sockets or ():
            bound.close()
        try:
            await asyncio.wait_for(self._see_out(), self.config.timeout_graceful_shutdown)
        except TimeoutError:
            tasks = self.server_state.tasks
            structlog.get_logger().warning("server.answers_cut", answers=len(tasks))
            for task in tasks:
                task.cancel()

    async def _see_out(self) -> None:
        """Tells every connection, also one that was just made, and waits until all of them and their tasks are gone."""
        told: set[Protocols] = set()
        for _ in range(_TURNS):
            self._tell(told)
            await asyncio.sleep(0)
        state = self.server_state
        while (state.connections or state.tasks) and not self.force_exit:
            self._tell(told)
            await asyncio.sleep(_LOOK_S)
        for server in self.servers:
            await server.wait_closed()

    def _tell(self, told: set[Protocols]) -> None:
        for connection in self.server_state.connections - told:
            told.add(connection)
            connection.shutdown()
