"""The queue of a connection's outgoing frames.

Frames added in one event loop iteration are sent as one message, or as few as the size limit allows. Adding does not
await; senders of much data wait for room first, so the queue is bounded by one batch per stream and one answer per
call. A socket that accepts no data for too long is given up.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from passerelle.protocol.wire import pack_messages

if TYPE_CHECKING:
    from collections.abc import Callable

    from passerelle.channels.transport import Socket


class Outbox:
    """``on_stall`` is called when the socket has accepted no data for ``stall_s``."""

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
        """Size of the waiting frames."""
        return self._size

    @property
    def is_empty(self) -> bool:
        """Whether all frames were passed to the socket, or dropped."""
        return not self._frames

    @property
    def has_room(self) -> bool:
        """Whether a sender of much data may continue."""
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
        """Sends prebuilt messages, at once if no frame waits before them; returns False if there is no room."""
        socket = self._socket
        if self._frames or self._closed or not socket.is_writable:
            return self._put_all(messages)
        for message in messages:
            socket.write(message)
        if not self._socket.is_writable:
            self._watch_stall()
        return True

    def _put_all(self, messages: list[bytes]) -> bool:
        if not self.has_room:
            return self._closed
        for message in messages:
            self.put(message)
        return True

    def flush(self) -> None:
        """Writes as much as the socket accepts."""
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
            self._watch_stall()
        self._release_waiters()

    def take_room(self) -> None:
        """The socket is writable again."""
        self._forget_stall()
        self.flush()

    async def wait_for_room(self) -> None:
        """Returns when there is room, or when the outbox is closed."""
        while not self.has_room and not self._closed:
            if self._waiting is None:
                self._waiting = []
            waiter = self._loop.create_future()
            self._waiting.append(waiter)
            await waiter

    async def finish(self) -> None:
        """Accepts no more frames; returns when all earlier ones were passed to the socket."""
        self._closed = True
        self._release_waiters()
        self.flush()
        if self._frames:
            self._drained = self._loop.create_future()
            await self._drained

    def drop(self) -> None:
        """Drops waiting frames: the socket is closed or given up."""
        self._closed = True
        self._frames.clear()
        self._size = 0
        self._forget_stall()
        self._release_waiters()

    def _release_waiters(self) -> None:
        if self._drained is not None and not self._drained.done() and not self._frames:
            self._drained.set_result(None)
        if self._waiting is None or not (self._closed or self.has_room):
            return
        waiting, self._waiting = self._waiting, None
        for waiter in waiting:
            if not waiter.done():
                waiter.set_result(None)

    def _watch_stall(self) -> None:
        if self._stalled is None:
            self._stalled = self._loop.call_later(
                self._stall_s, self._check_stall, self._socket.buffered
            )

    def _check_stall(self, before: int) -> None:
        self._stalled = None
        if self._socket.buffered < before:
            self._watch_stall()
        elif not self._socket.is_writable:
            self._on_stall()

    def _forget_stall(self) -> None:
        if self._stalled is not None:
            self._stalled.cancel()
            self._stalled = None
