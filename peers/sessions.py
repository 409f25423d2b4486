"""Outgoing connections: one keep-alive pool for each origin, shared by all calls to it."""

from __future__ import annotations

import socket
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Final, cast

from aiohttp import ClientRequest, ClientSession, DummyCookieJar, TCPConnector

from passerelle.core.errors import Draining
from passerelle.peers.connection_pool import ConnectionPool
from passerelle.peers.whole_answer import MAX_HEADER_BYTES, HeldBack

if TYPE_CHECKING:
    import ssl
    from collections.abc import Generator

    from aiohttp import ClientResponse
    from aiohttp.abc import AbstractResolver
    from aiohttp.connector import Connection

    from passerelle.core.peer import SendGuard
    from passerelle.runtime.common.address_screen import AddressScreen
    from passerelle.runtime.memory.room import MemoryAccount, MemoryRoom

# uvicorn closes a connection after 5 s idle; a request that meets the close has an unknown outcome.
_IDLE_S: Final = 4.0
MAX_BODY_BYTES: Final = 24 * 1024 * 1024
"""An answer contains the sent message, which may be as large as a request to the gateway."""
# A host that vanished sends nothing: probe after 30 s of silence, give up after three lost answers.
_KEEPALIVE: Final = (("TCP_KEEPIDLE", 30), ("TCP_KEEPINTVL", 10), ("TCP_KEEPCNT", 3))

AddressInfo = tuple[int, int, int, str, tuple[str, int] | tuple[str, int, int, int]]


_ASKED: Final[ContextVar[list[SendGuard] | None]] = ContextVar("asked", default=None)
"""aiohttp has no other way to pass it to the request. Emptied once that is sent: a connection made meanwhile keeps the
context, and so whatever it holds, as long as it lasts."""


@contextmanager
def check_before_send(may_send: SendGuard | None) -> Generator[None]:
    """A request made inside the block calls ``may_send`` before it is sent.

    Raises:
        HeldBack: it returned False; there is a connection, and nothing was written.
    """
    asked = [] if may_send is None else [may_send]
    token = _ASKED.set(asked)
    try:
        yield
    finally:
        _ASKED.reset(token)
        asked.clear()


class _HeldRequest(ClientRequest):
    """A request that calls ``may_send`` once aiohttp has a connection for it."""

    async def send(self, conn: Connection) -> ClientResponse:
        if not all(may_send() for may_send in _ASKED.get() or ()):
            raise HeldBack
        return await super().send(conn)


class PeerSessions:
    """Opens sessions on first use. They follow no redirects, keep no cookies and use no proxy from the environment.

    The number of connections is not limited here: a queue inside the pool would be a wait that nothing measures, and
    long streams would starve sends.

    With a ``screen`` each address is checked before its socket is created, however it was resolved: a connection to a
    rejected one fails with ``screening.REFUSED_ERRNO``, and nothing is sent. Without, every address is trusted: use
    that for URLs that the operator wrote. A whole answer has at most ``limit_bytes``.
    """

    def __init__(
        self,
        *,
        idle_s: float = _IDLE_S,
        screen: AddressScreen | None = None,
        resolver: AbstractResolver | None = None,
        memory: MemoryRoom | None = None,
        limit_bytes: int = MAX_BODY_BYTES,
    ) -> None:
        self._limit_bytes = limit_bytes
        self._idle_s = idle_s
        self._screen = screen
        self._resolver = resolver
        self._memory = memory
        self._open: dict[str, ClientSession] = {}
        self._pools: dict[tuple[str, ssl.SSLContext | None], ConnectionPool] = {}
        self._closed = False

    def open(self, origin: str) -> ClientSession:
        """The session of an origin.

        Raises:
            Draining: after ``close``.
        """
        if self._closed:
            raise Draining("the gateway is shutting down and calls no agents")
        session = self._open.get(origin)
        if session is None:
            session = self._open[origin] = self._start()
        return session

    def pool(self, origin: str, tls: ssl.SSLContext | None) -> ConnectionPool:
        """The connections to an origin for calls with one whole answer.

        Raises:
            Draining: after ``close``.
        """
        if self._closed:
            raise Draining("the gateway is shutting down and calls no agents")
        pool = self._pools.get((origin, tls))
        if pool is None:
            pool = self._pools[origin, tls] = ConnectionPool(
                origin,
                tls,
                idle_s=self._idle_s,
                limit_bytes=self._limit_bytes,
                make_socket=self._make_socket,
                resolve=self._resolve if self._resolver else None,
                room=self.bind(origin),
            )
        return pool

    def bind(self, origin: str) -> MemoryAccount | None:
        """The memory account for answers from an origin; None if memory is not counted."""
        return self._memory.bind("answer", f"agent:{origin}") if self._memory else None

    async def _resolve(self, host: str, port: int) -> list[AddressInfo]:
        resolver = cast("AbstractResolver", self._resolver)
        return [
            (one["family"], socket.SOCK_STREAM, one["proto"], "", (one["host"], one["port"]))
            for one in await resolver.resolve(host, port)
        ]

    def _start(self) -> ClientSession:
        connector = TCPConnector(
            limit=0,
            keepalive_timeout=self._idle_s,
            resolver=self._resolver,
            socket_factory=self._make_socket,
        )
        return ClientSession(
            connector=connector,
            cookie_jar=DummyCookieJar(),
            trust_env=False,
            headers={"User-Agent": "passerelle"},
            request_class=_HeldRequest,
            max_line_size=MAX_HEADER_BYTES,
            max_field_size=MAX_HEADER_BYTES,
        )

    def _make_socket(self, address: AddressInfo) -> socket.socket:
        if self._screen is not None:
            self._screen.check(address[4][0])
        return _make_socket(address)

    async def close(self) -> None:
        """Closes all connections, including those in use."""
        self._closed = True
        for pool in self._pools.values():
            pool.close()
        while self._open:
            _, session = self._open.popitem()
            await session.close()


def _make_socket(address: AddressInfo) -> socket.socket:
    family, kind, protocol, _, _ = address
    made = socket.socket(family, kind, protocol)
    made.setblocking(False)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in _KEEPALIVE:
        if hasattr(socket, option):
            made.setsockopt(socket.IPPROTO_TCP, getattr(socket, option), value)
    return made
