"""An agent's calls to other agents, across reconnects of its link.

A call with an idempotency key is sent again over the next link; without one its outcome is unknown. A stream ends with
its link; its error has the cursor to continue from. It is never restarted automatically.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from itertools import count
from typing import TYPE_CHECKING, Final, TypeAlias, assert_never

import orjson

from passerelle.client.calls import CallsInFlight
from passerelle.client.items import AnswersCut, CallRefused, ChannelError
from passerelle.core.chunks import in_chunks
from passerelle.protocol.frames import Answer, Call, Failure
from passerelle.protocol.reverse_frames import (
    AGENT_METHODS,
    AnswerPiece,
    CallPiece,
    StopAsking,
    StreamItem,
    TakeMore,
)

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from passerelle.client.link import Link
    from passerelle.core.wire.json import JsonObject

_ENVELOPE_BYTES: Final = 4_096
"""Bytes of a frame reserved for the members around the content."""
_CHAR_BYTES: Final = 4
"""Highest number of bytes of one character, escaped and in UTF-8."""


@dataclass(frozen=True, slots=True)
class OutboundRequest:
    """What an agent asks of another one. ``method`` is an A2A 1.0 name, ``headers`` are A2A service parameters."""

    to: str
    method: str
    params: JsonObject
    idem: str | None
    headers: JsonObject | None

    def make_call(self, call_id: str, window: int | None = None) -> Call:
        """Returns its frame; ``window`` is the number of responses in flight of a stream."""
        method = AGENT_METHODS + self.method
        return Call(call_id, method, self.idem, self.params, self.to, window, self.headers)


@dataclass(frozen=True, slots=True)
class Reply:
    """One StreamResponse of another agent. ``cursor`` is its position, for ``after`` of SubscribeToTask."""

    data: JsonObject
    cursor: str | None


_StreamItem: TypeAlias = Reply | ChannelError | None


@dataclass(slots=True)
class _Stream:
    """One open stream. None in the queue is its end."""

    call: Call
    queue: asyncio.Queue[_StreamItem] = field(default_factory=asyncio.Queue[_StreamItem])
    task: str | None = None
    cursor: str | None = None


class OutboundCalls:
    """All calls of an agent. ``link`` is the current link. Ids are never reused, so a late response matches no call."""

    def __init__(self) -> None:
        self._link: Link | None = None
        self._calls = CallsInFlight()
        self._streams: dict[str, _Stream] = {}
        self._numbers = count(1)
        self._pieces: dict[str, list[str]] = {}
        self._linked = asyncio.Event()
        self._error: ChannelError | None = None

    async def call(self, request: OutboundRequest) -> JsonObject:
        """Sends a call and returns its single response."""
        self._require()
        call, result = self._calls.open(request.make_call)
        link = self._link
        try:
            if link is not None:
                self._calls.mark_sent(call)
                await _send(link, call)
            return await result
        finally:
            self._calls.forget(call)
            self._pieces.pop(call.id, None)
            if not result.done() or result.cancelled():
                await self._stop(call)

    async def stream(self, request: OutboundRequest, window: int) -> AsyncGenerator[Reply]:
        """Sends a call and yields its responses, of which at most ``window`` are in flight."""
        link = await self._await_link()
        call = request.make_call(f"s{next(self._numbers)}", window)
        stream = self._streams[call.id] = _Stream(call)
        try:
            await _send(link, call)
            while (item := await stream.queue.get()) is not None:
                if isinstance(item, ChannelError):
                    raise item
                yield item
                await link.send(TakeMore(call.id, 1))
        finally:
            if self._streams.pop(call.id, None) is not None:
                self._pieces.pop(call.id, None)
                await self._stop(call)

    # ------------------------------------------------------------ frames from the gateway

    def take(self, frame: Answer | Failure | StreamItem | CallPiece) -> None:
        """Handles one frame of a call; a frame of an unknown call is ignored."""
        match frame:
            case CallPiece(call, text):
                self._pieces.setdefault(call, []).append(text)
            case StreamItem(call, _, cursor, data):
                value = self._assemble(call, data or {})
                if (stream := self._streams.get(call)) is not None:
                    stream.cursor = cursor or stream.cursor
                    stream.task = stream.task or _find_task(value)
                    stream.queue.put_nowait(Reply(value, cursor))
            case Answer(call, data):
                value = self._assemble(call, data)
                self._finish(call, None)
                self._calls.settle(Answer(call, value))
            case Failure(call, code, message, retry_s, data):
                self._pieces.pop(call, None)
                self._finish(call, CallRefused(code, message, retry_s, data or {}))
                self._calls.settle(frame)
            case _:
                assert_never(frame)

    def _finish(self, call: str, last: _StreamItem) -> None:
        stream = self._streams.pop(call, None)
        if stream is not None:
            stream.queue.put_nowait(last)

    def _assemble(self, call: str, data: JsonObject) -> JsonObject:
        pieces = self._pieces.pop(call, None)
        if pieces is None:
            return data
        value: JsonObject = orjson.loads("".join(pieces))
        return value

    # ------------------------------------------------------------ links

    async def begin(self, link: Link) -> None:
        """Starts to use a link; sends the calls that have no response yet."""
        self._link = link
        self._linked.set()
        for call in self._calls.list_unanswered():
            self._calls.mark_sent(call)
            await _send(link, call)

    def cut(self) -> None:
        """Ends the streams and the calls without a key: the link is lost."""
        self._link = None
        self._linked.clear()
        self._pieces.clear()
        self._calls.cut()
        for stream in tuple(self._streams.values()):
            cut = AnswersCut(stream.call.method, stream.task, stream.cursor)
            self._finish(stream.call.id, cut)

    def fail(self, error: ChannelError) -> None:
        """Ends every call and stream: there is no further link."""
        self._error = error
        self._linked.set()
        self._calls.fail(error)
        for call in tuple(self._streams):
            self._finish(call, error)

    async def _await_link(self) -> Link:
        """Waits for a link. A stream needs a live link, since it ends with it."""
        while True:
            self._require()
            if self._link is not None:
                return self._link
            await self._linked.wait()

    def _require(self) -> None:
        if self._error is not None:
            raise self._error

    async def _stop(self, call: Call) -> None:
        if self._link is not None:
            await self._link.send(StopAsking(call.id))


async def _send(link: Link, call: Call) -> None:
    """Sends a call in one frame if it fits; otherwise its content goes ahead in pieces."""
    inline = link.welcome.limits.get("in", 0) - _ENVELOPE_BYTES
    packed = orjson.dumps(call.data)
    if len(packed) <= inline:
        await link.send(call)
        return
    for piece in in_chunks(packed.decode(), inline // _CHAR_BYTES):
        await link.send(AnswerPiece(call.id, piece))
    await link.send(Call(call.id, call.method, call.idem, {}, call.to, call.window, call.headers))


def _find_task(response: JsonObject) -> str | None:
    """Returns the task of a StreamResponse; None for a bare Message."""
    match response:
        case {"task": {"id": str() as task}}:
            return task
        case {"statusUpdate": {"taskId": str() as task}} | {
            "artifactUpdate": {"taskId": str() as task}
        }:
            return task
        case _:
            return None
