"""A proxy between a client and a server that breaks things on purpose.

It stands on loopback before a TCP address or a unix socket and can let a call through and swallow the
reply, hold everything back, or cut every connection: the ways in which the outcome of a write is unknown.
A tap sees what passes, and may act on it before anybody has it.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Coroutine
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Protocol, cast

CHUNK = 65_536


class Cut(Exception):
    """A tap ends its connection; what it was given goes nowhere."""


class Tap(Protocol):
    """Sees both directions of one connection, and says what goes on in place of each chunk.

    Raises:
        Cut: the connection ends.
    """

    async def up(self, data: bytes) -> bytes:
        """What the client has sent."""
        ...

    async def down(self, data: bytes) -> bytes:
        """What the server has answered."""
        ...


class PassThrough:
    """A tap that only looks away."""

    async def up(self, data: bytes) -> bytes:
        return data

    async def down(self, data: bytes) -> bytes:
        return data


async def ignore(_reader: asyncio.StreamReader) -> None:
    """Hears nobody out."""


@dataclass(slots=True, eq=False)
class FaultProxy:
    """``swallow`` > 0: that many chunks of the server are dropped, each cutting its connection.

    ``hear`` may read what a client has to say to a server that is down, before its connection is closed.

    While ``open`` is not set, nothing passes in either direction (half-open peers, long pauses); ``held``
    counts the pipes that wait.
    """

    upstream: str
    make_tap: Callable[[], Tap] = PassThrough
    hear: Callable[[asyncio.StreamReader], Coroutine[None, None, None]] = ignore
    port: int = 0
    swallow: int = 0
    swallowed: int = 0
    accepted: int = 0
    held: int = 0
    open: asyncio.Event = field(default_factory=asyncio.Event)
    writers: set[asyncio.StreamWriter] = field(default_factory=set["asyncio.StreamWriter"])
    serving: set[asyncio.Task[None]] = field(default_factory=set["asyncio.Task[None]"])
    over: bool = False
    """Nobody is served any more; a client may have been accepted in this very moment."""

    @property
    def url(self) -> str:
        """What a store is opened with."""
        return f"redis://127.0.0.1:{self.port}"

    def cut(self) -> None:
        """Ends every connection at once, without a goodbye."""
        for writer in list(self.writers):
            cast("asyncio.Transport", writer.transport).abort()

    async def end(self) -> None:
        """Cuts all off, and returns when nobody is served."""
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
                await self.hear(reader)
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
        """Two pipes, which end together."""
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
    hear: Callable[[asyncio.StreamReader], Coroutine[None, None, None]] = ignore,
) -> AsyncGenerator[FaultProxy]:
    """A running proxy; ``upstream`` is ``host:port`` or the path of a unix socket.

    ``make_tap`` makes the tap of each connection, ``hear`` is for those that meet a server that is down.
    """
    proxy = FaultProxy(upstream, make_tap, hear)
    proxy.open.set()
    listener = await asyncio.start_server(proxy.take, "127.0.0.1", 0)
    proxy.port = cast("tuple[str, int]", listener.sockets[0].getsockname())[1]
    try:
        yield proxy
    finally:
        listener.close()
        await proxy.end()
        await listener.wait_closed()
