"""Limits gRPC connections per address. The library accepts and keeps them itself, and reports only calls.

So the descriptors of the process are scanned once a second. For an address over its limit the oldest anonymous
connections are closed first, then idle ones of callers, as over HTTP; one with a call stays. Behind a proxy that names
its clients the calls of each client are counted instead, together with its HTTP requests.
"""

from __future__ import annotations

import asyncio
import os
import socket
from collections import Counter
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Final, TypeAlias

import structlog

from passerelle.core.errors import Limited
from passerelle.gateway.connections import ConnectionTable
from passerelle.gateway.grpc.metadata import make_peer

if TYPE_CHECKING:
    from collections.abc import Generator, Iterable, Iterator

    from passerelle.gateway.grpc.metadata import GrpcPeer

_DESCRIPTORS: Final = "/dev/fd"
_SCAN_S: Final = 1.0
_PART: Final = 100
"""Scanning uses at most 1/100 of the time, and checks 100 descriptors between two yields to the loop."""
_RETRY_S: Final = 5

Seen: TypeAlias = "dict[GrpcPeer, int]"
"""The remote ends of connections, with the descriptor of each."""


class GrpcConnections:
    """Which peers are connected, and which have calls; ``most`` connections per address, None: no limit."""

    def __init__(self, table: ConnectionTable | None = None, most: int | None = None) -> None:
        """``table`` limits the clients of a proxy, together with HTTP."""
        self._table = ConnectionTable() if table is None else table
        self._most = most
        self._calls: Counter[GrpcPeer] = Counter()
        self._known: set[GrpcPeer] = set()
        self._seen: Seen = {}

    @contextmanager
    def begin(self, peer: GrpcPeer | None, headers: Iterable[tuple[str, str]]) -> Generator[None]:
        """A call is in progress during the block.

        Raises:
            Limited: the client of a proxy is at its limit.
        """
        if peer is None:
            yield
            return
        proxies, client = self._table.proxies, None
        if proxies.forwards(peer[0]):
            lines = ((name.encode(), value.encode("latin-1", "replace")) for name, value in headers)
            client = proxies.find_client(lines)
        if client is not None and not self._table.enter(client):
            reason = "this address has reached its limit of concurrent requests"
            raise Limited("concurrency", reason, _RETRY_S)
        self._calls[peer] += 1
        try:
            yield
        finally:
            if client is not None:
                self._table.leave(client)
            self._calls[peer] -= 1
            if not self._calls[peer]:
                del self._calls[peer]

    def note_authenticated(self, peer: GrpcPeer | None) -> None:
        """A caller has authenticated on a connection."""
        if peer is not None:
            self._known.add(peer)

    async def watch(self, port: int) -> None:
        """Scans the connections to ``port`` until cancelled."""
        if self._most is None:
            return
        loop = asyncio.get_running_loop()
        while True:
            began_s = loop.time()
            await self.look(port)
            await asyncio.sleep(max(_SCAN_S, (loop.time() - began_s) * _PART))

    async def look(self, port: int) -> None:
        """Closes the connections over the limit; forgets those that have ended."""
        found: Seen = {}
        for number, descriptor in enumerate(_list_descriptors()):
            peer = _read_peer(descriptor, port)
            if peer is not None:
                found[peer] = descriptor
            if number % _PART == _PART - 1:
                await asyncio.sleep(0)
        # In the order in which they were first seen.
        kept = [peer for peer in self._seen if peer in found]
        self._seen = {peer: found[peer] for peer in dict.fromkeys((*kept, *found))}
        self._known &= self._seen.keys()
        for peer in self._choose():
            self._end(peer, port)

    def _choose(self) -> Iterator[GrpcPeer]:
        """The connections over the limit, in the order in which they are closed."""
        most = self._most
        if most is None:
            return
        for address, count in Counter(peer[0] for peer in self._seen).items():
            if count <= most or self._table.proxies.is_exempt(address):
                continue
            idle = [one for one in self._seen if one[0] == address and not self._calls[one]]
            idle.sort(key=self._known.__contains__)
            ending = idle[: count - most]
            structlog.get_logger().warning(
                "server.connections_full", most=most, of_address=address, ended=len(ending)
            )
            yield from ending

    def _end(self, peer: GrpcPeer, port: int) -> None:
        """Shuts it down, and the library closes it; checks first that the descriptor is still this connection."""
        with suppress(OSError), socket.socket(fileno=os.dup(self._seen.pop(peer))) as connection:
            if _read_ends(connection) == (peer, port):
                connection.shutdown(socket.SHUT_RDWR)


def _list_descriptors() -> list[int]:
    try:
        return [int(name) for name in os.listdir(_DESCRIPTORS)]  # noqa: PTH208  numbers, and no paths
    except OSError:
        # No descriptor is left for the scan, so none for a connection either.
        return []


def _read_peer(descriptor: int, port: int) -> GrpcPeer | None:
    """The remote end of a connection to ``port``; None for any other descriptor."""
    try:
        # The address family does not matter: only the names of both ends are read.
        connection = socket.socket(socket.AF_INET6, socket.SOCK_STREAM, 0, fileno=descriptor)
    except OSError:
        return None
    try:
        ends = _read_ends(connection)
    except OSError:
        return None
    finally:
        connection.detach()
    return ends[0] if ends is not None and ends[1] == port else None


def _read_ends(connection: socket.socket) -> tuple[GrpcPeer, int] | None:
    """The remote end, and the local port. Raises OSError if it is not a connection."""
    ours: tuple[str, int] | str | bytes = connection.getsockname()[:2]
    if not isinstance(ours, tuple):
        return None
    theirs: tuple[str, int] = connection.getpeername()[:2]
    return make_peer(*theirs), ours[1]
