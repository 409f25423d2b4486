"""Writes the face's answer to a call as frames: one for a whole answer, one for each stream event and for its end."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

import orjson

from passerelle.a2a_mapping.errors import ErrorKind
from passerelle.a2a_mapping.members import object_at, objects_at, text_at
from passerelle.a2a_mapping.socket_frames import write_end, write_item

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from starlette.types import Message

    from passerelle.a2a_mapping.rpc import RpcId
    from passerelle.core.wire.json import JsonObject

_STREAM: Final = b"text/event-stream"
_PROBLEM: Final = b"application/problem+json"
_ID: Final = b"id: "
_DATA: Final = b"data: "
_ERROR: Final = b'"error":'
_ENDS: Final = (b"\n\n", b": keep-alive\n")
_UNAUTHORIZED: Final = 401


@dataclass(slots=True)
class SocketAnswer:
    """Takes the ASGI messages of one response; ``send`` sends a text frame."""

    rpc_id: RpcId
    send: Callable[[str], Awaitable[None]]
    is_unauthenticated: bool = field(default=False, init=False)
    is_missing: bool = field(default=False, init=False)
    """The agent no longer exists for this caller."""
    _headers: dict[str, str] = field(default_factory=dict[str, str], init=False)
    _streams: bool = field(default=False, init=False)
    _whole: bytearray = field(default_factory=bytearray, init=False)
    _events: bytearray = field(default_factory=bytearray, init=False)
    """The received part of an incomplete event."""
    _has_begun: bool = field(default=False, init=False)
    _is_over: bool = field(default=False, init=False)
    """Whether the frame was sent, or is about to be, that ends the call."""

    async def take(self, message: Message) -> None:
        """Takes one message of the response."""
        if message["type"] == "http.response.start":
            self._begin(message)
        elif self._streams:
            await self._take_events(message)
        else:
            self._whole += message.get("body", b"")
            if not message.get("more_body", False):
                self._is_over = True
                if not self.is_missing:
                    await self.send(self._whole.decode())

    async def end_early(self) -> None:
        """The reader has left: the end of the call, unless it is answered."""
        if not self._is_over:
            await self._end()

    def _begin(self, message: Message) -> None:
        pairs: list[tuple[bytes, bytes]] = message["headers"]
        media_type = dict(pairs).get(b"content-type", b"")
        self._headers = {name.decode(): value.decode("latin-1") for name, value in pairs}
        self._streams = media_type == _STREAM
        self.is_missing = media_type == _PROBLEM
        self.is_unauthenticated = message["status"] == _UNAUTHORIZED

    async def _take_events(self, message: Message) -> None:
        """Takes events as ``EventStream`` writes them: cursor, and data in one line; a long one arrives in parts."""
        self._events += message.get("body", b"")
        more = message.get("more_body", False)
        if more and not self._events.endswith(_ENDS):
            return
        cursor, events = "", bytes(self._events)
        self._events.clear()
        for line in events.split(b"\n"):
            if line.startswith(_ID):
                cursor = line.removeprefix(_ID).decode()
            elif line.startswith(_DATA):
                await self._send_item(line.removeprefix(_DATA), cursor)
        if not more and not self._is_over:
            await self._end()

    async def _end(self) -> None:
        self._is_over = True
        await self.send(write_end(self.rpc_id))

    async def _send_item(self, data: bytes, cursor: str) -> None:
        if not cursor and _ERROR in data:
            self._is_over = True
            reason = _read_reason(data)
            self.is_unauthenticated = reason == ErrorKind.UNAUTHENTICATED
            self.is_missing = reason == ErrorKind.NOT_FOUND
            await self.send(data.decode())
            return
        is_first, self._has_begun = not self._has_begun, True
        await self.send(write_item(data, cursor, self._headers, is_first=is_first))


def _read_reason(data: bytes) -> str:
    """The reason of the error that ends a stream; its first detail is the gateway's."""
    answer: JsonObject = orjson.loads(data)
    details = objects_at(object_at(answer, "error"), "data")
    return text_at(details[0], "reason") if details else ""
