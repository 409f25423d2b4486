"""Keep-alive connections to one origin, for calls that have one whole answer."""

from __future__ import annotations

import asyncio
import ssl
from typing import TYPE_CHECKING, cast
from weakref import WeakSet

from yarl import URL

from passerelle.core.errors import Draining
from passerelle.gateway.peers.whole_answer import Broken, Connection, NotConnected

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable

    from passerelle.gateway.peers.sessions import AddressInfo
    from passerelle.gateway.peers.wire import Reply


class ConnectionPool:
    """Connections to ``origin`` under one TLS context. Their number is not limited, as that of ``PeerSessions`` is not.

    ``make_socket`` judges an address before anything is sent there.
    """

    def __init__(
        self,
        origin: str,
        tls: ssl.SSLContext | None,
        *,
        idle_s: float,
        limit_bytes: int,
        make_socket: Callable[[AddressInfo], socket.socket],
    ) -> None:
        self._origin = URL(origin)
        self._tls = tls
        self._idle_s = idle_s
        self._limit_bytes = limit_bytes
        self._make_socket = make_socket
        self._idle: list[Connection] = []
        self._made: WeakSet[Connection] = WeakSet()
        self._sweep: asyncio.TimerHandle | None = None
        self._is_closed = False

    async def ask(self, asked: bytes, *, connect_s: float, total_s: float) -> Reply:
        """The answer to a whole request, within ``total_s`` of the first step.

        Connecting gets at most half of that, so that a failure to connect is known as one.

        Raises:
            NotConnected, Broken, NotReadable, TimeoutError: see ``whole_answer``. Only the first one proves that
                nothing was taken.
            Draining: after ``close``.
        """
        if self._is_closed:
            raise _say_closed()
        loop = asyncio.get_running_loop()
        now_s = loop.time()
        connection = self._take(now_s) or await self._connect(min(connect_s, total_s / 2))
        try:
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
        """Closes every connection, also those in use."""
        self._is_closed = True
        for connection in tuple(self._made):
            connection.close()
        self._idle.clear()
        if self._sweep is not None:
            self._sweep.cancel()

    def _take(self, now_s: float) -> Connection | None:
        while self._idle:
            connection = self._idle.pop()
            if connection.is_usable and now_s - connection.free_since_s < self._idle_s:
                return connection
            connection.close()
        return None

    def _drop_idle(self, loop: asyncio.AbstractEventLoop) -> None:
        """The oldest are in front: the newest is taken first."""
        oldest_s = loop.time() - self._idle_s
        kept = [one for one in self._idle if one.is_usable and one.free_since_s > oldest_s]
        for connection in self._idle:
            if connection not in kept:
                connection.close()
        self._idle = kept
        self._sweep = loop.call_later(self._idle_s / 2, self._drop_idle, loop) if kept else None

    async def _connect(self, within_s: float) -> Connection:
        """Tries the addresses of the host in turn.

        Raises:
            NotConnected: none took us in time.
        """
        try:
            async with asyncio.timeout(within_s):
                return await self._connect_to_any()
        except TimeoutError:
            raise NotConnected(f"no connection within {within_s:g} s") from None

    async def _connect_to_any(self) -> Connection:
        loop = asyncio.get_running_loop()
        host, port = self._origin.host or "", self._origin.port or 0
        reason = "the name has no address"
        try:
            addresses = await loop.getaddrinfo(host, port, type=1)
        except OSError as error:
            raise NotConnected(f"{host}: {error.strerror or error}") from None
        for address in addresses:
            try:
                return await self._connect_to(cast("AddressInfo", address), host)
            except (OSError, ssl.SSLError, Broken) as error:
                reason = f"{type(error).__name__}: {error}"
        raise NotConnected(reason)

    async def _connect_to(self, address: AddressInfo, host: str) -> Connection:
        loop = asyncio.get_running_loop()
        made = self._make_socket(address)
        try:
            await loop.sock_connect(made, address[4])
            secure = self._origin.scheme == "https"
            _, connection = await loop.create_connection(
                lambda: Connection(self._limit_bytes, loop),
                sock=made,
                ssl=(self._tls or True) if secure else None,
                server_hostname=host if secure else None,
            )
        except BaseException:
            made.close()
            raise
        if self._is_closed:
            connection.close()
            raise _say_closed()
        self._made.add(connection)
        return connection


def _say_closed() -> Draining:
    return Draining("no calls to peers any more: the gateway is shutting down")
