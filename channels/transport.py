"""A socket as the channel sees it, and the outbox in front of it.

The outbox is the one place where frames wait. It is written without awaiting; whoever has much to send
waits for room first, so what waits there is bounded by one batch per stream and one answer per call.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING, Final, Protocol

from starlette.websockets import WebSocketDisconnect

from passerelle.channels.wire import join_frames

if TYPE_CHECKING:
    from starlette.websockets import WebSocket

_LEFT: Final = frozenset({1000, 1001})
_MESSAGE_BYTES: Final = 65_536
"""Frames are put together into one message up to this size; one larger frame goes alone."""


class Socket(Protocol):
    """One accepted WebSocket."""

    @property
    def left(self) -> bool:
        """Whether the other side has closed it, and with a code that says so."""
        ...

    async def receive(self) -> str | bytes | None:
        """The next message; text, bytes where it was binary, None when the socket is gone."""
        ...

    async def send(self, message: bytes) -> None:
        """Sends one text message; returns when the transport has taken it."""
        ...

    async def close(self, code: int, reason: str) -> None:
        """Closes the socket; one that is gone already is no error."""
        ...


class AsgiSocket:
    """A socket of an ASGI server."""

    def __init__(self, websocket: WebSocket) -> None:
        self._websocket = websocket
        self.left = False

    async def receive(self) -> str | bytes | None:
        try:
            message = await self._websocket.receive()
        except WebSocketDisconnect:
            return None
        if message["type"] == "websocket.disconnect":
            self.left = message.get("code") in _LEFT
            return None
        text: str | None = message.get("text")
        data: bytes = message.get("bytes") or b""
        return data if text is None else text

    async def send(self, message: bytes) -> None:
        try:
            await self._websocket.send_text(message.decode())
        except (WebSocketDisconnect, RuntimeError, OSError):
            return  # the reader sees the end of the socket, and ends the connection

    async def close(self, code: int, reason: str) -> None:
        try:
            await self._websocket.close(code, reason)
        except (WebSocketDisconnect, RuntimeError, OSError):
            return


class Outbox:
    """Frames on their way out, in order."""

    def __init__(self, room_bytes: int) -> None:
        self._room_bytes = room_bytes
        self._frames: deque[bytes] = deque()
        self._size = 0
        self._closed = False
        self._filled = asyncio.Event()
        self._has_room = asyncio.Event()
        self._has_room.set()

    @property
    def size_bytes(self) -> int:
        """What waits, in bytes."""
        return self._size

    def put(self, frame: bytes) -> None:
        """Adds a frame; after ``finish`` it is dropped."""
        if self._closed:
            return
        self._frames.append(frame)
        self._size += len(frame)
        self._filled.set()
        if self._size >= self._room_bytes:
            self._has_room.clear()

    async def wait_for_room(self) -> None:
        """Returns when less than the room is taken."""
        await self._has_room.wait()

    def finish(self) -> None:
        """Takes no more frames; ``take`` gives what is left and then None."""
        self._closed = True
        self._filled.set()

    async def take(self) -> bytes | None:
        """The next message: everything that waits, up to a bound; None when finished and empty."""
        while not self._frames:
            if self._closed:
                return None
            self._filled.clear()
            await self._filled.wait()
        batch = [self._frames.popleft()]
        size = len(batch[0])
        while self._frames and size + len(self._frames[0]) <= _MESSAGE_BYTES:
            batch.append(self._frames.popleft())
            size += len(batch[-1])
        self._size -= size
        if self._size < self._room_bytes:
            self._has_room.set()
        return join_frames(batch)
