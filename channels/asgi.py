"""Channels over an ASGI server. The request's task reads; a second task writes while there is data to write."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from starlette.websockets import WebSocketDisconnect

if TYPE_CHECKING:
    from starlette.types import Message, Receive, Send

    from passerelle.channels.transport import SocketListener

_CLEAN_CODES: Final = frozenset({1000, 1001})
_CLOSING_S: Final = 2.0
"""Time for the client to receive a close and to answer it."""
_HELD_BYTES: Final = 65_536
"""With this much waiting for the server, in addition to the server's own buffer, the socket is not writable."""


class AsgiSocket:
    """A socket accepted by an ASGI server."""

    __slots__ = (
        "_aborted",
        "_closer",
        "_closing",
        "_held",
        "_messages",
        "_paused",
        "_reader",
        "_receive",
        "_receiver",
        "_send",
        "_writer",
    )

    def __init__(self, receive: Receive, send: Send) -> None:
        self._receive = receive
        self._send = send
        self._receiver: SocketListener | None = None
        self._messages: list[bytes] = []
        self._held = 0
        self._closing: Message | None = None
        self._aborted = False
        self._closer: asyncio.TimerHandle | None = None
        self._paused: asyncio.Future[None] | None = None
        self._reader: asyncio.Task[None] | None = None
        self._writer: asyncio.Task[None] | None = None

    @property
    def is_writable(self) -> bool:
        return self._held < _HELD_BYTES

    @property
    def buffered(self) -> int:
        return self._held

    async def serve(self, receiver: SocketListener) -> None:
        """Reads until the socket is closed, in the task of the request."""
        self._receiver, self._reader = receiver, asyncio.current_task()
        left = False
        try:
            while (message := await self._receive())["type"] != "websocket.disconnect":
                self._pass_on(message)
                if self._paused is not None:
                    await self._paused
            left = message.get("code") in _CLEAN_CODES
        except asyncio.CancelledError:
            if not self._aborted:
                raise
        finally:
            if self._writer is not None:
                self._writer.cancel()
            if self._closer is not None:
                self._closer.cancel()
            self._reader = None
            self._notify_end(left=left)

    def _pass_on(self, message: Message) -> None:
        if self._receiver is not None:
            text: str | None = message.get("text")
            data: bytes = message.get("bytes") or b""
            self._receiver.take_message(data if text is None else text)

    def _notify_end(self, *, left: bool) -> None:
        receiver, self._receiver = self._receiver, None
        if receiver is not None:
            receiver.take_end(left=left)

    def write(self, message: bytes) -> None:
        if self._closing is None:
            self._messages.append(message)
            self._held += len(message)
            self._start_writing()

    def pause(self) -> None:
        if self._paused is None:
            self._paused = asyncio.get_running_loop().create_future()

    def resume(self) -> None:
        if self._paused is not None:
            self._paused.set_result(None)
            self._paused = None

    def close(self, code: int, reason: str) -> None:
        self._receiver = None
        if self._closing is None and self._reader is not None:
            self._closing = {"type": "websocket.close", "code": code, "reason": reason}
            self._start_writing()
            self.resume()
            self._closer = asyncio.get_running_loop().call_later(_CLOSING_S, self.abort)

    def abort(self) -> None:
        """The server closes a socket whose application has returned; ASGI has no other way to abort."""
        self._aborted = True
        self._receiver = None
        if self._reader is not None:
            self._reader.cancel()

    def _start_writing(self) -> None:
        if self._writer is None:
            self._writer = asyncio.create_task(self._write_out())

    async def _write_out(self) -> None:
        try:
            while self._messages:
                messages, self._messages = self._messages, []
                for message in messages:
                    await self._send({"type": "websocket.send", "text": message.decode()})
                    self._count_sent(len(message))
            if self._closing is not None:
                await self._send(self._closing)
        except (WebSocketDisconnect, RuntimeError, OSError):
            return  # the reader sees the end of the socket
        finally:
            self._writer = None

    def _count_sent(self, size: int) -> None:
        was_full = not self.is_writable
        self._held -= size
        if was_full and self.is_writable and self._receiver is not None:
            self._receiver.take_room()
