"""The HTTP server: binds first, runs on the gateway's event loop, and stops within a deadline.

uvicorn parses requests and writes responses. This module decides what stops it and how fast.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import signal
import socket
import ssl
from collections.abc import Awaitable, Callable, Coroutine, Generator
from dataclasses import field
from typing import TYPE_CHECKING, Any, Final, TypeVar

import structlog
import uvicorn
import uvloop
from starlette.types import ASGIApp

from passerelle.core.errors import ConfigInvalid
from passerelle.core.frozen import frozen
from passerelle.gateway.connections import ConnectionTable
from passerelle.gateway.request_path import settle_protocol
from passerelle.runtime.common.beat import until_beat
from passerelle.runtime.common.version import SERVER

if TYPE_CHECKING:
    from uvicorn.server import Protocols

_HANDSHAKE_S: Final = 15.0
"""For the TLS handshake; a request head has as long."""
_POLL_S: Final = 0.005
_LOOP_ITERATIONS: Final = 5
"""Loop iterations until a connection that was accepted last is among the known ones."""


class PromptServer(uvicorn.Server):
    """Stops by ``end`` only: uvicorn's signal handlers raise the signal again and so change the exit status.

    It stops as soon as it can. uvicorn checks ten times a second whether to stop, and waits a tenth of a second after
    closing its connections, even if there were none.

    Answers in progress have the ``timeout_graceful_shutdown`` of the configuration. There is no lifespan protocol.
    """

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self._ending = asyncio.Event()

    def end(self) -> None:
        """Stops accepting connections, and closes."""
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
        # Each tick sets the Date header, which has whole seconds.
        while not await self.on_tick(0):
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(until_beat(asyncio.get_running_loop().time())):
                    await self._ending.wait()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        for server in self.servers:
            server.close()
        for bound in sockets or ():
            bound.close()
        try:
            await asyncio.wait_for(self._close_connections(), self.config.timeout_graceful_shutdown)
        except TimeoutError:
            tasks = self.server_state.tasks
            structlog.get_logger().warning("server.answers_cut", answers=len(tasks))
            for task in tasks:
                task.cancel()

    async def _close_connections(self) -> None:
        """Shuts down every connection, also one accepted last, and waits until all of them and their tasks are gone."""
        notified: set[Protocols] = set()
        for _ in range(_LOOP_ITERATIONS):
            self._shut_down(notified)
            await asyncio.sleep(0)
        state = self.server_state
        while (state.connections or state.tasks) and not self.force_exit:
            self._shut_down(notified)
            await asyncio.sleep(_POLL_S)
        for server in self.servers:
            await server.wait_closed()

    def _shut_down(self, notified: set[Protocols]) -> None:
        for connection in self.server_state.connections - notified:
            notified.add(connection)
            connection.shutdown()


T = TypeVar("T")
Drain = Callable[[], Awaitable[None]]

DRAIN_S: Final = 7.0
CONNECTIONS_S: Final = 1
"""How long answers in progress may take after everything else has stopped."""
KEEP_ALIVE_S: Final = 75
BACKLOG: Final = 2_048
SOCKET_MESSAGE_BYTES: Final = 65_536
FRAME_BYTES: Final = 1_048_576
_WILDCARDS: Final = {"0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104  compared, never bound
_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM)


@frozen
class Listener:
    """A bound, listening socket and the URL under which this machine reaches it."""

    socket: socket.socket
    url: str

    @property
    def port(self) -> int:
        """The real port, also where the setting is 0."""
        port: int = self.socket.getsockname()[1]
        return port

    def close(self) -> None:
        """Releases the port."""
        self.socket.close()


def bind(host: str, port: int, scheme: str = "http", field: str = "port") -> Listener:
    """Listens on an address. Called first, so that a port in use is reported before anything else starts.

    ``field`` is the setting that names the port.

    Raises:
        ConfigInvalid: the port is taken or not allowed, or the host is not an address of this machine.
    """
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        bound = socket.socket(family, kind, protocol)
    except OSError as error:
        raise ConfigInvalid("host", f"cannot listen on {host}: {error.strerror}") from None
    except ValueError:
        # A label of more than 63 characters, or a character that no name has.
        raise ConfigInvalid("host", f"{host[:60]!r} is no host name or address") from None
    try:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind(address)
        bound.listen(BACKLOG)
        bound.setblocking(False)
    except OSError as error:
        bound.close()
        raise _explain(error, host, port, field) from None
    return Listener(bound, _compose_url(bound, scheme))


@frozen
class ServerAdmission:
    """Limits on connections: at most ``backlog`` wait to be accepted, ``table`` tracks the accepted ones.

    ``watch`` is called once a second.
    """

    table: ConnectionTable = field(default_factory=ConnectionTable)
    backlog: int = BACKLOG
    watch: Callable[[], None] = lambda: None


class Server:
    """Serves one ASGI application on a listener. ``drain`` ends what outlives a request."""

    def __init__(
        self,
        app: ASGIApp,
        listener: Listener,
        drain: Drain | None = None,
        message_bytes: int = SOCKET_MESSAGE_BYTES,
        tls: ssl.SSLContext | None = None,
        frame_bytes: int = FRAME_BYTES,
        admission: ServerAdmission | None = None,
    ) -> None:
        """``message_bytes`` limits a channel message, ``frame_bytes`` an A2A frame."""
        self._listener = listener
        limits = admission or ServerAdmission()
        self._members: dict[str, object] = {"table": limits.table}
        self._frame_bytes = frame_bytes
        config = _configure(app, message_bytes, tls, limits.backlog)
        self._uvicorn = _Drained(config, drain, limits.watch)

    async def serve(self, stop: asyncio.Event) -> None:
        """Serves until ``stop`` is set, then stops accepting, drains and closes.

        Stopping takes at most ``DRAIN_S`` and ``CONNECTIONS_S``, which leaves the engine its share of the 10 s.
        """
        await settle_protocol(self._uvicorn.config, self._members, self._frame_bytes)
        serving = asyncio.create_task(self._uvicorn.serve([self._listener.socket]), name="server")
        stopping = asyncio.create_task(stop.wait(), name="server.stop")
        try:
            await asyncio.wait((serving, stopping), return_when=asyncio.FIRST_COMPLETED)
        finally:
            stopping.cancel()
            self._uvicorn.end()
            await _finish(serving)
            self._listener.close()

    def abandon_answers(self) -> None:
        """Stops waiting for answers in progress."""
        self._uvicorn.force_exit = True


@contextlib.contextmanager
def stop_on_signals(
    stop: asyncio.Event, on_repeat: Callable[[], None] | None = None
) -> Generator[None]:
    """SIGINT and SIGTERM set ``stop``; a repeated one calls ``on_repeat``. Needs the loop of the main thread."""
    loop = asyncio.get_running_loop()

    def on_signal() -> None:
        if stop.is_set() and on_repeat is not None:
            on_repeat()
        stop.set()

    for number in _SIGNALS:
        loop.add_signal_handler(number, on_signal)
    try:
        yield
    finally:
        for number in _SIGNALS:
            loop.remove_signal_handler(number)


def run(main: Coroutine[Any, Any, T]) -> T:
    """Runs a coroutine on uvloop until it ends."""
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(main)


class _Drained(PromptServer):
    """Drains after it stops accepting connections and before it closes them."""

    def __init__(
        self, config: uvicorn.Config, drain: Drain | None, watch: Callable[[], None]
    ) -> None:
        super().__init__(config)
        self._drain = drain
        self._watch = watch

    async def on_tick(self, counter: int) -> bool:
        self._watch()
        return await super().on_tick(counter)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        for server in self.servers:
            server.close()
        try:
            if self._drain is not None:
                await asyncio.wait_for(self._drain(), DRAIN_S)
        except TimeoutError:
            structlog.get_logger().warning("server.drain_cut", after_s=DRAIN_S)
        finally:
            await super().shutdown(sockets)


def _configure(
    app: ASGIApp,
    message_bytes: int,
    tls: ssl.SSLContext | None,
    backlog: int,
) -> uvicorn.Config:
    return uvicorn.Config(
        app,
        interface="asgi3",
        loop="none",
        ws_max_size=message_bytes,
        # Channels have their own heartbeats, which also prove that the reader is alive.
        ws_ping_interval=None,
        ws_per_message_deflate=False,
        lifespan="off",
        log_config=None,
        access_log=False,
        # A sender can forge a forwarding header; the header of a trusted proxy is read in ``proxies``.
        proxy_headers=False,
        server_header=False,
        headers=[("Server", SERVER)],
        backlog=backlog,
        ssl_context_factory=(lambda _config, _default: tls) if tls else None,
        timeout_keep_alive=KEEP_ALIVE_S,
        timeout_graceful_shutdown=CONNECTIONS_S,
    )


async def _finish(serving: asyncio.Task[None]) -> None:
    """Waits until the server has stopped. If the caller is cancelled, the sockets are still closed first."""
    done, _ = await asyncio.wait((serving,), timeout=DRAIN_S + 2 * CONNECTIONS_S)
    if not done:
        serving.cancel()
        await asyncio.wait((serving,))
    if not serving.cancelled() and (error := serving.exception()):
        raise error


def _explain(error: OSError, host: str, port: int, field: str) -> ConfigInvalid:
    match error.errno:
        case errno.EADDRINUSE:
            reason = f"{port} on {host} is in use; choose another, or 0 for a free one"
        case errno.EACCES:
            reason = f"{port} is not allowed for this user; choose a port above 1023"
        case errno.EADDRNOTAVAIL:
            return ConfigInvalid("host", f"{host} is not an address of this machine")
        case _:
            reason = f"{port} on {host}: {error.strerror}"
    return ConfigInvalid(field, reason)


def _compose_url(bound: socket.socket, scheme: str) -> str:
    name: tuple[str, int] = bound.getsockname()[:2]
    host, port = _WILDCARDS.get(name[0], name[0]), name[1]
    return f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"
