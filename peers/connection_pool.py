"""Keep-alive connections to one origin, for calls with one whole answer.

A connection without its own TLS settings trusts this machine's certificate authorities.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from functools import lru_cache
from typing import TYPE_CHECKING, Final, cast
from weakref import WeakSet

from aiohappyeyeballs import start_connection  # pyright: ignore[reportUnknownVariableType] - tuples of anything
from yarl import URL

from passerelle.core.errors import Draining
from passerelle.peers.exchange import describe_connect
from passerelle.peers.whole_answer import ConnectionLost, HeldBack, NotConnected, PeerConnection

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from passerelle.core.peer import SendGuard
    from passerelle.peers.call import AgentReply
    from passerelle.peers.sessions import AddressInfo
    from passerelle.runtime.memory.room import MemoryAccount


@lru_cache(1)
def trust_public_authorities() -> ssl.SSLContext:
    """The TLS context that all such connections share.

    Loading the authorities takes about 20 ms and blocks the event loop.
    """
    return ssl.create_default_context()


_NEXT_ADDRESS_S: Final = 0.25
"""RFC 8305 section 5; aiohttp, which carries streams to the same hosts, waits as long."""


class ConnectionPool:
    """Connections to ``origin`` under one TLS context. Their number is not limited, as in ``PeerSessions``.

    ``make_socket`` checks an address before a connection to it. Without ``tls`` an https origin is verified against
    this machine's certificate authorities.
    """

    def __init__(
        self,
        origin: str,
        tls: ssl.SSLContext | None,
        *,
        idle_s: float,
        limit_bytes: int,
        make_socket: Callable[[AddressInfo], socket.socket],
        resolve: Callable[[str, int], Awaitable[list[AddressInfo]]] | None = None,
        room: MemoryAccount | None = None,
    ) -> None:
        self._origin = URL(origin)
        self._tls = tls
        self._idle_s = idle_s
        self._limit_bytes = limit_bytes
        self._make_socket = make_socket
        self._room = room
        self._resolve = resolve or resolve_name
        self._idle: list[PeerConnection] = []
        self._made: WeakSet[PeerConnection] = WeakSet()
        self._sweep: asyncio.TimerHandle | None = None
        self._is_closed = False

    async def ask(
        self,
        asked: bytes,
        *,
        connect_s: float,
        total_s: float,
        may_send: SendGuard | None = None,
    ) -> AgentReply:
        """Sends a request and returns the whole answer, within ``total_s``.

        Connecting gets at most half of that time, so that a connect failure is known as one.

        Raises:
            NotConnected, ConnectionLost, NotReadable, TimeoutError: see ``whole_answer``. Only the first one proves
                that nothing was accepted.
            HeldBack: ``may_leave`` returned False.
            Draining: after ``close``.
        """
        if self._is_closed:
            raise _make_closed_error()
        loop = asyncio.get_running_loop()
        now_s = loop.time()
        connection = self._take_idle(now_s) or await self._connect(min(connect_s, total_s / 2))
        try:
            if may_send is not None and not may_send():
                raise HeldBack
            reply = await connection.ask(asked, now_s + total_s)
        except BaseException:
            connection.close()
            raise
        if self._is_closed or not connection.keeps_alive:
            connection.close()
            return reply
        connection.free_since_s = loop.time()
        self._idle.append(connection)
        if self._sweep is None:
            self._sweep = loop.call_later(self._idle_s, self._drop_idle, loop)
        return reply

    def close(self) -> None:
        """Closes all connections, including those in use."""
        self._is_closed = True
        for connection in tuple(self._made):
            connection.close()
        self._idle.clear()
        if self._sweep is not None:
            self._sweep.cancel()

    def _take_idle(self, now_s: float) -> PeerConnection | None:
        while self._idle:
            connection = self._idle.pop()
            if connection.is_usable and now_s - connection.free_since_s < self._idle_s:
                return connection
            connection.close()
        return None

    def _drop_idle(self, loop: asyncio.AbstractEventLoop) -> None:
        """Closes expired connections; the oldest are first in the list, since the newest is taken first."""
        oldest_s = loop.time() - self._idle_s
        kept = [one for one in self._idle if one.is_usable and one.free_since_s > oldest_s]
        for connection in self._idle:
            if connection not in kept:
                connection.close()
        self._idle = kept
        self._sweep = loop.call_later(self._idle_s / 2, self._drop_idle, loop) if kept else None

    async def _connect(self, within_s: float) -> PeerConnection:
        """Tries the addresses of the host: starts the next one after a quarter of a second without an answer.

        An address whose TLS handshake fails is skipped (RFC 8305).

        Raises:
            NotConnected: no address accepted the connection in time.
        """
        try:
            async with asyncio.timeout(within_s):
                return await self._connect_to_any()
        except TimeoutError:
            raise NotConnected(f"no connection within {within_s:g} s") from None

    async def _connect_to_any(self) -> PeerConnection:
        host, port = self._origin.host or "", self._origin.port or 0
        reason = "the name has no address"
        try:
            addresses = await self._resolve(host, port)
        except OSError as error:
            raise NotConnected(f"{host}: {error.strerror or error}") from None
        tried: dict[socket.socket, AddressInfo] = {}

        def make(address: AddressInfo) -> socket.socket:
            made = self._make_socket(address)
            tried[made] = address
            return made

        while addresses:
            try:
                made = await start_connection(
                    addresses,
                    happy_eyeballs_delay=_NEXT_ADDRESS_S,
                    interleave=1,
                    socket_factory=make,
                )
            except OSError as error:
                raise NotConnected(describe_connect(error)) from None
            except RuntimeError as error:
                raise NotConnected(str(error)) from None
            try:
                return await self._open_connection(made, host)
            except OSError as error:
                reason = describe_connect(error)
            except ConnectionLost as error:
                reason = str(error)
            addresses.remove(tried[made])
        raise NotConnected(reason)

    async def _open_connection(self, made: socket.socket, host: str) -> PeerConnection:
        loop = asyncio.get_running_loop()
        secure = self._origin.scheme == "https"
        try:
            _, connection = await loop.create_connection(
                lambda: PeerConnection(self._limit_bytes, loop, self._room),
                sock=made,
                ssl=(self._tls or trust_public_authorities()) if secure else None,
                server_hostname=host if secure else None,
            )
        except BaseException:
            made.close()
            raise
        if self._is_closed:
            connection.close()
            raise _make_closed_error()
        self._made.add(connection)
        return connection


async def resolve_name(host: str, port: int) -> list[AddressInfo]:
    """Resolves a host name.

    Raises:
        OSError: it has no address.
    """
    loop = asyncio.get_running_loop()
    found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return cast("list[AddressInfo]", found)


def _make_closed_error() -> Draining:
    return Draining("the gateway is shutting down and calls no agents")
