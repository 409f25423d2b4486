"""A hostile client connection: any bytes in any pieces, read no faster than its pace allows.

It has no buffer but its own, so unread data stays in the kernel and in the gateway.
"""

from __future__ import annotations

import asyncio
import socket
import struct
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Self

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Iterator
    from random import Random

SMALL: Final = 16_384
"""Receive buffer of the kernel for a slow reader."""
_MOST: Final = 1 << 20
_PIECES: Final = (1, 2, 7, 200, 1_460, 20_000)
_HOST: Final = "127.0.0.1"
_END: Final = b"\r\n\r\n"
_RESET: Final = struct.pack("ii", 1, 0)
_INFORMATIONAL: Final = range(100, 200)
_BODYLESS: Final = frozenset({204, 304})


class Ended(Exception):
    """The other side has closed during a read; the text is the data until then."""


@dataclass(frozen=True, slots=True)
class Answer:
    """One answer, with lower-case header names."""

    status: int
    headers: dict[str, str]
    body: bytes


@dataclass(slots=True)
class Pace:
    """Reads a few bytes now and then while ``is_slow``."""

    chance: Random
    is_slow: bool = True

    def draw(self) -> tuple[float, int]:
        """Seconds to wait, and bytes to read after that."""
        if not self.is_slow:
            return 0.0, _MOST
        return self.chance.uniform(0.001, 0.05), self.chance.choice((1, 1, 3, 40))


@dataclass(slots=True)
class Wire:
    """An open connection to the gateway."""

    link: socket.socket
    pace: Pace | None = None
    _held: bytearray = field(default_factory=bytearray)

    @classmethod
    async def open(cls, port: int, pace: Pace | None = None) -> Self:
        """Connects to a port of this machine."""
        link = socket.socket()
        link.setblocking(False)
        link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if pace is not None:
            link.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, SMALL)
        await asyncio.get_running_loop().sock_connect(link, (_HOST, port))
        return cls(link, pace)

    async def send(self, raw: bytes) -> None:
        """Sends all bytes.

        Raises:
            ConnectionError: the other side has closed.
        """
        await asyncio.get_running_loop().sock_sendall(self.link, raw)

    async def send_pieces(self, raw: bytes, chance: Random) -> None:
        """Sends all bytes, in pieces cut by ``split``."""
        for piece in split(raw, chance):
            await self.send(piece)
            # Without a pause now and then the kernel would join the pieces.
            await asyncio.sleep(chance.choice((0, 0, 0, 0.001)))

    async def receive(self) -> bytes:
        """Available bytes, as far as the pace allows; empty at the end."""
        pause_s, most = self.pace.draw() if self.pace else (0.0, _MOST)
        if pause_s:
            await asyncio.sleep(pause_s)
        return await asyncio.get_running_loop().sock_recv(self.link, most)

    async def read_answer(self, *, to_head: bool = False) -> Answer:
        """The next answer; ``to_head``: an answer to HEAD, which has no body.

        Raises:
            Ended: it is incomplete.
        """
        status, headers = await self.read_head()
        if to_head or status in _BODYLESS:
            return Answer(status, headers, b"")
        if "content-length" in headers:
            return Answer(status, headers, await self._take(int(headers["content-length"])))
        return Answer(status, headers, b"".join([piece async for piece in self.read_chunks()]))

    async def read_head(self) -> tuple[int, dict[str, str]]:
        """Status and headers; interim responses are skipped."""
        while True:
            first, *lines = (await self._take_to(_END)).decode("latin-1").split("\r\n")
            status = int(first.split()[1])
            if status not in _INFORMATIONAL:
                pairs = (line.partition(":") for line in lines)
                return status, {name.lower(): said.strip() for name, _, said in pairs}

    async def read_chunks(self) -> AsyncGenerator[bytes]:
        """A chunked body, as it arrives."""
        while size := int(await self._take_to(b"\r\n"), 16):
            yield await self._take(size)
            await self._take(2)
        await self._take(2)

    async def read_end(self) -> bytes:
        """Everything until the other side closes; a reset counts as an end too."""
        said, self._held = bytes(self._held), bytearray()
        try:
            while piece := await self.receive():
                said += piece
        except ConnectionError:
            pass
        return said

    def leave(self, *, rudely: bool = False) -> None:
        """Closes; ``rudely`` with a reset."""
        if rudely and self.link.fileno() >= 0:
            self.link.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
        self.link.close()

    async def _take_to(self, mark: bytes) -> bytes:
        while (end := self._held.find(mark)) < 0:
            await self._fill()
        return (await self._take(end + len(mark)))[: -len(mark)]

    async def _take(self, size: int) -> bytes:
        while len(self._held) < size:
            await self._fill()
        taken = bytes(self._held[:size])
        del self._held[:size]
        return taken

    async def _fill(self) -> None:
        piece = await self.receive()
        if not piece:
            raise Ended(repr(bytes(self._held[:200])))
        self._held += piece


def split(raw: bytes, chance: Random) -> Iterator[bytes]:
    """Pieces of all sizes from one byte; together they are ``raw``."""
    start = 0
    while start < len(raw):
        end = start + chance.randint(1, chance.choice(_PIECES))
        yield raw[start:end]
        start = end
