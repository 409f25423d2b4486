"""The network between one device and the gateway; it can be unplugged.

A TCP proxy on loopback. While it is down, every connection is cut and new ones fail, as on a train in a
tunnel; neither side gets a closing handshake.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator
from typing import Final, cast

from passerelle.protocol.concurrency import cancel_all

HOST: Final = "127.0.0.1"
CHUNK: Final = 65_536


class Network:
    """One proxy. Use ``url`` in place of the gateway's URL."""

    def __init__(self, upstream_port: int) -> None:
        self.port = 0
        self.cuts = 0
        self._upstream_port = upstream_port
        self._is_up = True
        self._ends: set[asyncio.StreamWriter] = set()

    @property
    def url(self) -> str:
        """The URL that a device connects to."""
        return f"http://{HOST}:{self.port}"

    def pull_out(self) -> None:
        """Cuts all connections, and blocks new ones until ``plug_in``."""
        self._is_up = False
        self.cuts += 1
        for end in list(self._ends):
            end.transport.abort()

    def plug_in(self) -> None:
        """Allows new connections again."""
        self._is_up = True

    async def carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Forwards one connection in both directions; both end together."""
        try:
            far_reader, far_writer = await self._reach()
        except OSError:
            writer.transport.abort()
            return
        self._ends |= {writer, far_writer}
        pipes = [
            asyncio.create_task(_pipe(reader, far_writer)),
            asyncio.create_task(_pipe(far_reader, writer)),
        ]
        try:
            await asyncio.wait(pipes, return_when=asyncio.FIRST_COMPLETED)
        finally:
            await cancel_all(pipes)
            self._ends -= {writer, far_writer}
            for end in (writer, far_writer):
                end.transport.abort()

    async def _reach(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        if not self._is_up:
            raise ConnectionRefusedError
        return await asyncio.open_connection(HOST, self._upstream_port)


@contextlib.asynccontextmanager
async def open_network(upstream_port: int) -> AsyncGenerator[Network]:
    """Opens a network, initially up, to a port of this machine."""
    network = Network(upstream_port)
    listener = await asyncio.start_server(network.carry, HOST, 0)
    network.port = cast("tuple[str, int]", listener.sockets[0].getsockname())[1]
    try:
        yield network
    finally:
        listener.close()
        network.pull_out()
        await listener.wait_closed()


async def _pipe(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while chunk := await reader.read(CHUNK):
        writer.write(chunk)
        await writer.drain()
