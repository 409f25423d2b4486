"""A proxy between client and server that injects faults.

It listens on loopback in front of a TCP address or a unix socket. It can forward a call and drop the reply, block
everything, or cut every connection: the ways in which the outcome of a write becomes unknown. A tap sees the traffic,
and may act before it is forwarded.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Coroutine
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Protocol, cast

CHUNK = 65_536


class Cut(Exception):
    """Raised by a tap to end its connection; the current chunk is dropped."""


class Tap(Protocol):
    """Sees both directions of one connection, and returns what is forwarded for each chunk.

    Raises:
        Cut: the connection ends.
    """

    async def up(self, data: bytes) -> bytes:
        """Data from the client."""
        ...

    async def down(self, data: bytes) -> bytes:
        """Data from the server."""
        ...


class PassThrough:
    """A tap that forwards everything unchanged."""

    async def up(self, data: bytes) -> bytes:
        return data

    async def down(self, data: bytes) -> bytes:
        return data


async def ignore(_reader: asyncio.StreamReader) -> None:
    """Reads nothing."""


@dataclass(slots=True, eq=False)
class FaultProxy:
    """``swallow`` > 0: that many chunks of the server are dropped, each cutting its connection.

    ``on_refused`` may read the client's data when the server is down, before its connection is closed.

    While ``open`` is not set, nothing passes in either direction (half-open peers, long pauses); ``held`` counts the
    waiting pipes.
    """

    upstream: str
    make_tap: Callable[[], Tap] = PassThrough
    on_refused: Callable[[asyncio.StreamReader], Coroutine[None, None, None]] = ignore
    port: int = 0
    swallow: int = 0
    swallowed: int = 0
    accepted: int = 0
    held: int = 0
    open: asyncio.Event = field(default_factory=asyncio.Event)
    writers: set[asyncio.StreamWriter] = field(default_factory=set["asyncio.StreamWriter"])
    serving: set[asyncio.Task[None]] = field(default_factory=set["asyncio.Task[None]"])
    over: bool = False
    """No client is served any longer; one may have been accepted at this moment."""

    @property
    def url(self) -> str:
        """A store is opened with this URL."""
        return f"redis://127.0.0.1:{self.port}"

    def cut(self) -> None:
        """Ends every connection at once, without a close handshake."""
        for writer in list(self.writers):
            cast("asyncio.Transport", writer.transport).abort()

    async def end(self) -> None:
        """Cuts all connections and returns when they are closed."""
        self.over = True
        self.open.set()
        self.cut()
        if self.serving:
            await asyncio.wait(self.serving)

    def take(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """A client was accepted."""
        if self.over:
            writer.close()
            return
        self.accepted += 1
        self.writers.add(writer)
        serving = asyncio.create_task(self._serve(reader, writer))
        self.serving.add(serving)
        serving.add_done_callback(self.serving.discard)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            far_reader, far_writer = await self._connect()
        except OSError:
            if not self.over:
                await self.on_refused(reader)
        else:
            await self._join(reader, writer, far_reader, far_writer)
        finally:
            self.writers.discard(writer)
            writer.close()

    async def _join(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        far_reader: asyncio.StreamReader,
        far_writer: asyncio.StreamWriter,
    ) -> None:
        """Two pipes that end together."""
        if self.over:
            far_writer.close()
            return
        self.writers.add(far_writer)
        tap = self.make_tap()
        up = asyncio.create_task(self._pipe(reader, far_writer, tap.up, replies=False))
        down = asyncio.create_task(self._pipe(far_reader, writer, tap.down, replies=True))
        try:
            await asyncio.wait({up, down}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in (up, down):
                task.cancel()
            await asyncio.gather(up, down, return_exceptions=True)
            self.writers.discard(far_writer)
            far_writer.close()

    async def _connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        if self.upstream.startswith("/"):
            return await asyncio.open_unix_connection(self.upstream)
        host, _, port = self.upstream.rpartition(":")
        return await asyncio.open_connection(host, int(port))

    async def _pipe(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        see: Callable[[bytes], Coroutine[None, None, bytes]],
        *,
        replies: bool,
    ) -> None:
        while chunk := await reader.read(CHUNK):
            self.held += 1
            await self.open.wait()
            self.held -= 1
            if replies and self.swallow > 0:
                self.swallow -= 1
                self.swallowed += 1
                return
            if passed := await see(chunk):
                writer.write(passed)
                await writer.drain()


@asynccontextmanager
async def fault_proxy(
    upstream: str,
    make_tap: Callable[[], Tap] = PassThrough,
    on_refused: Callable[[asyncio.StreamReader], Coroutine[None, None, None]] = ignore,
) -> AsyncGenerator[FaultProxy]:
    """A running proxy; ``upstream`` is ``host:port`` or the path of a unix socket.

    ``make_tap`` creates the tap of each connection, ``on_refused`` handles clients when the server is down.
    """
    proxy = FaultProxy(upstream, make_tap, on_refused)
    proxy.open.set()
    listener = await asyncio.start_server(proxy.take, "127.0.0.1", 0)
    proxy.port = cast("tuple[str, int]", listener.sockets[0].getsockname())[1]
    try:
        yield proxy
    finally:
        listener.close()
        await proxy.end()
        await listener.wait_closed()
