"""One WebSocket of a client: dial, handshake, heartbeat, read. It ends with a close code; the keeper reconnects."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed
from websockets.typing import Subprotocol

from passerelle.core.errors import InvalidInput
from passerelle.protocol.closing import CloseCode
from passerelle.protocol.frames import (
    SUBPROTOCOL,
    ClientBeat,
    ClientFrame,
    Hello,
    Refusal,
    ServerFrame,
    Welcome,
)
from passerelle.protocol.wire import decode_server, encode_client, split_message

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Mapping
    from ssl import SSLContext

    from passerelle.protocol.cursor import Cursor

_OPEN_S: Final = 10.0
_CLOSE_S: Final = 2.0
_MAX_MESSAGE: Final = 2_097_152
ABNORMAL: Final = 1006


class LinkRefused(Exception):
    """The server closed the link or refused it before the welcome."""

    def __init__(self, code: int, reason: str, retry_s: int | None) -> None:
        super().__init__(f"{code} {reason}")
        self.code = code
        self.reason = reason
        self.retry_s = retry_s


class Link:
    """A socket after its welcome frame."""

    def __init__(
        self, socket: ClientConnection, welcome: Welcome, first: list[ServerFrame]
    ) -> None:
        self.welcome = welcome
        self._socket = socket
        self._first = first
        self._heard_s = asyncio.get_running_loop().time()
        self._beats = 0

    @classmethod
    async def dial(cls, url: str, hello: Hello, tls: SSLContext | None = None) -> Link:
        """Opens a socket and sends the hello.

        Raises:
            LinkRefused: the server closed the socket, or sent a refusal, instead of a welcome.
            OSError, InvalidHandshake, TimeoutError: it cannot be opened.
        """
        socket = await connect(
            url,
            ssl=tls,
            subprotocols=[Subprotocol(SUBPROTOCOL)],
            compression=None,
            ping_interval=None,
            open_timeout=_OPEN_S,
            close_timeout=_CLOSE_S,
            max_size=_MAX_MESSAGE,
            proxy=None,
        )
        try:
            async with asyncio.timeout(_OPEN_S):
                return await cls._greet(socket, hello)
        except BaseException:
            await socket.close()
            raise

    @classmethod
    async def _greet(cls, socket: ClientConnection, hello: Hello) -> Link:
        notice: Refusal | None = None
        try:
            await socket.send(encode_client(hello).decode())
            async for message in socket:
                frames = _decode(message)
                for place, frame in enumerate(frames):
                    if isinstance(frame, Welcome):
                        return cls(socket, frame, frames[place + 1 :])
                    if isinstance(frame, Refusal):
                        notice = frame
        except ConnectionClosed:
            pass  # the close code is read from the socket below
        code = socket.close_code or ABNORMAL
        reason = notice.message if notice else socket.close_reason or ""
        raise LinkRefused(code, reason, notice.retry_s if notice else None)

    async def read(self) -> AsyncIterator[ServerFrame]:
        """Yields frames until the socket is closed, by either side."""
        for frame in self._first:
            yield frame
        with suppress(ConnectionClosed):
            async for message in self._socket:
                self._heard_s = asyncio.get_running_loop().time()
                for frame in _decode(message):
                    yield frame

    async def send(self, frame: ClientFrame) -> bool:
        """Sends a frame. Returns False if the socket is closed; its reader ends then."""
        try:
            await self._socket.send(encode_client(frame).decode())
        except ConnectionClosed:
            return False
        return True

    async def beat(
        self, jitter: Callable[[], float], take_acks: Callable[[], Mapping[str, Cursor]]
    ) -> None:
        """Sends heartbeats with acknowledgements. Aborts the socket if no frame arrives for too long."""
        loop = asyncio.get_running_loop()
        next_s = loop.time() + self.welcome.heartbeat_s * (0.5 + 0.5 * jitter())
        while True:
            silent_until_s = self._heard_s + self.welcome.idle_s
            await asyncio.sleep(max(0.0, min(next_s, silent_until_s) - loop.time()))
            now_s = loop.time()
            if now_s >= self._heard_s + self.welcome.idle_s:
                self.abort()
                return
            if now_s >= next_s:
                next_s = now_s + self.welcome.heartbeat_s
                self._beats += 1
                if not await self.send(ClientBeat(self._beats, take_acks())):
                    return

    def abort(self) -> None:
        """Drops the socket without a closing handshake: the server does not respond."""
        self._socket.transport.abort()

    async def close(self, code: int = CloseCode.NORMAL, reason: str = "") -> None:
        """Closes the socket."""
        await self._socket.close(code, reason)

    @property
    def close_code(self) -> int:
        """The close code; 1006 if no close frame arrived."""
        return self._socket.close_code or ABNORMAL


def _decode(message: str | bytes) -> list[ServerFrame]:
    frames: list[ServerFrame] = []
    for line in split_message(message):
        with suppress(InvalidInput):  # skips a frame that this version cannot parse
            frame = decode_server(line)
            if frame is not None:
                frames.append(frame)
    return frames
