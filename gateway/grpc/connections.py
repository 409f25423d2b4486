"""Connections over gRPC by address. The library accepts and keeps them by itself, and tells of calls alone.

So the descriptors of the process are looked through once a second. Of an address with more than its part the oldest
strangers end first, then callers without a call, as over HTTP; one with a call stays. Behind a proxy that names its
clients the calls of each are counted instead, together with its requests over HTTP.
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
_LOOK_S: Final = 1.0
_PART: Final = 100
"""Of the time at most one of so many parts is spent with looking, and so many descriptors are looked at in one go."""
_RETRY_S: Final = 5

Seen: TypeAlias = "dict[GrpcPeer, int]"
"""The other ends of connections, with the descriptor of each."""


class GrpcConnections:
    """Who is connected, and who calls; of one address there may be ``most``, None: as many as come."""

    def __init__(self, table: ConnectionTable | None = None, most: int | None = None) -> None:
        """``table`` has the bound on what clients of a proxy do, over HTTP as well."""
        self._table = ConnectionTable() if table is None else table
        self._most = most
        self._calls: Counter[GrpcPeer] = Counter()
        self._known: set[GrpcPeer] = set()
        self._seen: Seen = {}

    @contextmanager
    def begin(self, peer: GrpcPeer | None, headers: Iterable[tuple[str, str]]) -> Generator[None]:
        """A call is under way in the block.

        Raises:
            Limited: the client of a proxy has all of its places.
        """
        if peer is None:
            yield
            return
        proxies, client = self._table.proxies, None
        if proxies.forwards(peer[0]):
            lines = ((name.encode(), said.encode("latin-1", "replace")) for name, said in headers)
            client = proxies.find_client(lines)
        if client is not None and not self._table.enter(client):
            reason = "as many requests of this address as may be are under way here"
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
        """Somebody has authenticated on a connection."""
        if peer is not None:
            self._known.add(peer)

    async def watch(self, port: int) -> None:
        """Looks at the connections to a port of ours until cancelled."""
        if self._most is None:
            return
        loop = asyncio.get_running_loop()
        while True:
            began_s = loop.time()
            await self.look(port)
            await asyncio.sleep(max(_LOOK_S, (loop.time() - began_s) * _PART))

    async def look(self, port: int) -> None:
        """Ends what is over the bound; forgets what has ended."""
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
        """Those that are too many, in the order in which they go."""
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
        """The library closes it once it reads the end; what its number stands for by now is looked at again."""
        with suppress(OSError), socket.socket(fileno=os.dup(self._seen.pop(peer))) as connection:
            if _read_ends(connection) == (peer, port):
                connection.shutdown(socket.SHUT_RDWR)


def _list_descriptors() -> list[int]:
    try:
        return [int(name) for name in os.listdir(_DESCRIPTORS)]  # noqa: PTH208  numbers, and no paths
    except OSError:
        # Without a descriptor for the look there is none for a connection, either.
        return []


def _read_peer(descriptor: int, port: int) -> GrpcPeer | None:
    """The other end of a connection to ``port``; None for every other descriptor."""
    try:
        # The family is whatever it is: only the names of both ends are asked for.
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
    """The other end, and our port. Raises OSError where it is no connection."""
    ours: tuple[str, int] | str | bytes = connection.getsockname()[:2]
    if not isinstance(ours, tuple):
        return None
    theirs: tuple[str, int] = connection.getpeername()[:2]
    return make_peer(*theirs), ours[1]
