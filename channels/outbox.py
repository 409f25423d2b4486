"""The one place where the frames of a connection wait.

What is put in one turn of the event loop leaves as one message, or as few as its bound allows. It is filled without
awaiting; whoever has much to send waits for room first, so what waits is bounded by one batch per stream and one answer
per call. A socket that takes nothing for too long is given up.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from passerelle.protocol.wire import pack_messages

if TYPE_CHECKING:
    from collections.abc import Callable

    from passerelle.channels.transport import Socket


class Outbox:
    """``on_stall`` is called when the socket has taken nothing for ``stall_s``."""

    __slots__ = (
        "_closed",
        "_drained",
        "_frames",
        "_loop",
        "_on_stall",
        "_pending",
        "_room_bytes",
        "_size",
        "_socket",
        "_stall_s",
        "_stalled",
        "_waiting",
    )

    def __init__(
        self, socket: Socket, room_bytes: int, stall_s: float, on_stall: Callable[[], None]
    ) -> None:
        self._socket = socket
        self._room_bytes = room_bytes
        self._stall_s = stall_s
        self._on_stall = on_stall
        self._loop = asyncio.get_running_loop()
        self._frames: list[bytes] = []
        self._size = 0
        self._closed = False
        self._pending = False
        self._stalled: asyncio.TimerHandle | None = None
        self._waiting: list[asyncio.Future[None]] | None = None
        self._drained: asyncio.Future[None] | None = None

    @property
    def size_bytes(self) -> int:
        """What waits here, in bytes."""
        return self._size

    @property
    def is_empty(self) -> bool:
        """Whether the socket has all that was put, or will never have it."""
        return not self._frames

    @property
    def has_room(self) -> bool:
        """Whether somebody with much to send may go on."""
        return self._size < self._room_bytes and self._socket.is_writable

    def put(self, frame: bytes) -> None:
        """Adds a frame; after ``finish`` it is dropped."""
        if self._closed:
            return
        self._frames.append(frame)
        self._size += len(frame)
        if not self._pending:
            self._pending = True
            self._loop.call_soon(self.flush)

    def write(self, messages: list[bytes]) -> bool:
        """Sends what was made for many, at once where nothing waits before it; False where there is no room for it."""
        socket = self._socket
        if self._frames or self._closed or not socket.is_writable:
            return self._put_all(messages)
        for message in messages:
            socket.write(message)
        if not self._socket.is_writable:
            self._watch()
        return True

    def _put_all(self, messages: list[bytes]) -> bool:
        if not self.has_room:
            return self._closed
        for message in messages:
            self.put(message)
        return True

    def flush(self) -> None:
        """Writes what the socket takes."""
        self._pending = False
        if self._frames and self._socket.is_writable:
            messages = pack_messages(self._frames)
            written = 0
            while written < len(messages) and self._socket.is_writable:
                self._socket.write(messages[written])
                written += 1
            self._frames = messages[written:]
            self._size = sum(map(len, self._frames))
        if self._socket.is_writable:
            self._forget_stall()
        else:
            self._watch()
        self._let_go_on()

    def take_room(self) -> None:
        """The socket is writable again."""
        self._forget_stall()
        self.flush()

    async def wait_for_room(self) -> None:
        """Returns when there is room, or when nothing is taken any more."""
        while not self.has_room and not self._closed:
            if self._waiting is None:
                self._waiting = []
            waiter = self._loop.create_future()
            self._waiting.append(waiter)
            await waiter

    async def finish(self) -> None:
        """Takes no more frames; returns when the socket has what was put before."""
        self._closed = True
        self._let_go_on()
        self.flush()
        if self._frames:
            self._drained = self._loop.create_future()
            await self._drained

    def drop(self) -> None:
        """Forgets what waits: the socket is gone, or given up."""
        self._closed = True
        self._frames.clear()
        self._size = 0
        self._forget_stall()
        self._let_go_on()

    def _let_go_on(self) -> None:
        if self._drained is not None and not self._drained.done() and not self._frames:
            self._drained.set_result(None)
        if self._waiting is None or not (self._closed or self.has_room):
            return
        waiting, self._waiting = self._waiting, None
        for waiter in waiting:
            if not waiter.done():
                waiter.set_result(None)

    def _watch(self) -> None:
        if self._stalled is None:
            self._stalled = self._loop.call_later(self._stall_s, self._judge, self._socket.buffered)

    def _judge(self, before: int) -> None:
        self._stalled = None
        if self._socket.buffered < before:
            self._watch()
        elif not self._socket.is_writable:
            self._on_stall()

    def _forget_stall(self) -> None:
        if self._stalled is not None:
            self._stalled.cancel()
            self._stalled = None
