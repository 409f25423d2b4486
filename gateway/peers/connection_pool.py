"""Keep-alive connections to one origin, for calls that have one whole answer."""

from __future__ import annotations

import asyncio
import ssl
from functools import lru_cache
from typing import TYPE_CHECKING, Final, cast

from yarl import URL

from passerelle.gateway.peers.whole_answer import Broken, Connection, NotConnected

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable, Mapping

    from passerelle.gateway.peers.sessions import AddressInfo
    from passerelle.gateway.peers.wire import Reply, Request

_UNSENDABLE: Final = frozenset("\r\n\0")


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
        self._busy: set[Connection] = set()
        self._sweep: asyncio.TimerHandle | None = None
        self._asked: tuple[str, str, Mapping[str, str]] | None = None
        self._head = b""

    async def ask(
        self,
        request: Request,
        headers: Mapping[str, str],
        *,
        connect_s: float,
        total_s: float,
    ) -> Reply:
        """The answer to a request, within ``total_s`` of the first step.

        Raises:
            NotConnected, Broken, NotReadable, TimeoutError: see ``whole_answer``. Only the first one proves that
                nothing was taken.
        """
        packed = self._write(request, headers)
        loop = asyncio.get_running_loop()
        now_s = loop.time()
        connection = self._take(now_s) or await self._connect(connect_s)
        self._busy.add(connection)
        try:
            reply = await connection.ask(packed, now_s + total_s)
        except BaseException:
            connection.close()
            raise
        finally:
            self._busy.discard(connection)
        self._keep(connection, loop)
        return reply

    def close(self) -> None:
        """Closes every connection, also those in use."""
        for connection in (*self._idle, *self._busy):
            connection.close()
        self._idle.clear()
        if self._sweep is not None:
            self._sweep.cancel()

    def _write(self, request: Request, headers: Mapping[str, str]) -> bytes:
        """The bytes of a request. One is mostly made like the one before it, and then its head is the same.

        Raises:
            NotConnected: a header cannot be sent.
        """
        asked = (request.method, request.url, headers)
        if asked != self._asked:
            self._head, self._asked = write_head(request, headers), asked
        body = request.body
        if body is None:
            return self._head + b"\r\n"
        return b"%bContent-Length: %d\r\n\r\n%b" % (self._head, len(body), body)

    def _take(self, now_s: float) -> Connection | None:
        while self._idle:
            connection = self._idle.pop()
            if connection.is_usable and now_s - connection.free_since_s < self._idle_s:
                return connection
            connection.close()
        return None

    def _keep(self, connection: Connection, loop: asyncio.AbstractEventLoop) -> None:
        if not connection.keeps_alive:
            connection.close()
            return
        connection.free_since_s = loop.time()
        self._idle.append(connection)
        if self._sweep is None:
            self._sweep = loop.call_later(self._idle_s, self._drop_idle, loop)

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
        return connection


def write_head(request: Request, headers: Mapping[str, str]) -> bytes:
    """The request line and the headers but for the length of the body. The answer shall not be compressed.

    Raises:
        NotConnected: a header cannot be sent.
    """
    host, target = _split(request.url)
    lines = [f"{request.method} {target} HTTP/1.1", f"Host: {host}", "User-Agent: passerelle"]
    lines += [f"{name}: {value}" for name, value in headers.items()]
    lines.append("Accept-Encoding: identity")
    if not all(map(_UNSENDABLE.isdisjoint, lines)):
        raise NotConnected("a header has characters that cannot be sent")
    return "\r\n".join(lines).encode("latin-1", "replace") + b"\r\n"


@lru_cache(1024)
def _split(url: str) -> tuple[str, str]:
    """The Host header and the request target of a URL."""
    parsed = URL(url)
    return parsed.host_port_subcomponent or "", parsed.raw_path_qs
