"""Calls that the gateway sends to an agent over one link. Calls run concurrently.

A stream sends an item only while its window has room; otherwise it waits, and the application with it (backpressure).
When the link ends, the application continues, but its replies are discarded.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, assert_never

import orjson

from passerelle.client.asgi_app import A2aError, AppAnswer, Fault, HttpError
from passerelle.core.chunks import in_chunks
from passerelle.protocol.reverse_frames import (
    AGENT_METHODS,
    AnswerItem,
    AnswerPiece,
    CallPiece,
    Credit,
    Done,
    Failed,
    StopWaiting,
)

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine

    from passerelle.client.asgi_app import AppExchange, AppOutcome, InProcess
    from passerelle.core.wire.json import Json, JsonObject
    from passerelle.protocol.reverse_frames import AgentCall, AnswerFrame

_ENVELOPE_BYTES: Final = 1_024
"""Bytes of a frame reserved for the members around the content."""
_CHAR_BYTES: Final = 4
"""Highest number of bytes of one character, escaped and in UTF-8."""
_MESSAGE_CHARS: Final = 2_000
"""Of an error; the gateway reads no more."""
_BUSY: Final = frozenset({429, 503})
_MOST_ITEMS: Final = 2**20


@dataclass(slots=True)
class _Work:
    """One call in progress. ``room`` is the number of stream items that may be sent now."""

    id: str
    room: asyncio.Semaphore
    exchange: AppExchange | None = None
    is_wanted: bool = True
    items: int = 0

    def leave(self) -> None:
        """Marks the call as abandoned by its caller."""
        self.is_wanted = False
        self.room.release()
        if self.exchange is not None:
            self.exchange.leave()


class ServedCalls:
    """The calls of one link. ``send`` sends a frame and returns once the socket has accepted it."""

    def __init__(
        self,
        app: InProcess,
        send: Callable[[AnswerFrame], Awaitable[object]],
        frame_bytes: int,
    ) -> None:
        self._app = app
        self._send = send
        self._inline_bytes = frame_bytes - _ENVELOPE_BYTES
        self._work: dict[str, _Work] = {}
        self._pieces: dict[str, list[str]] = {}

    def take(self, frame: CallPiece | Credit | StopWaiting) -> None:
        """Handles a frame that belongs to an open call: a piece of content, flow-control credit, or a cancellation."""
        match frame:
            case CallPiece(call, text):
                self._pieces.setdefault(call, []).append(text)
            case Credit(call, items):
                if (work := self._work.get(call)) is not None:
                    for _ in range(min(items, _MOST_ITEMS)):
                        work.room.release()
            case StopWaiting(call):
                self.stop(call)
            case _:
                assert_never(frame)

    def stop(self, call: str) -> None:
        """Drops a call that its caller has abandoned."""
        work = self._work.pop(call, None)
        if work is not None:
            work.leave()

    def cut(self) -> None:
        """Drops all calls: the link has ended."""
        for call in tuple(self._work):
            self.stop(call)

    def begin(self, call: AgentCall) -> Coroutine[None, None, None]:
        """Registers a call; the returned coroutine runs it to completion."""
        work = self._work[call.id] = _Work(call.id, asyncio.Semaphore(call.window or _MOST_ITEMS))
        return self._answer(work, call)

    async def _answer(self, work: _Work, call: AgentCall) -> None:
        try:
            params = self._assemble(call)
        except orjson.JSONDecodeError:
            await self._end(work, Failed(call.id, "failed", "the call cannot be read"))
            return
        headers = {name: str(value) for name, value in call.headers.items()}

        async def on_item(data: JsonObject) -> None:
            if work.is_wanted:
                await work.room.acquire()
            if work.is_wanted:  # the caller may have left while this waited for room
                work.items += 1
                rest = await self._send_pieces(work, data)
                await self._send(AnswerItem(call.id, work.items, rest))

        method = call.method.removeprefix(AGENT_METHODS)
        work.exchange = self._app.begin(method, params, headers, on_item)
        await self._finish(work, await work.exchange.run())

    def _assemble(self, call: AgentCall) -> JsonObject:
        pieces = self._pieces.pop(call.id, None)
        if pieces is None:
            return call.data or {}
        value: JsonObject = orjson.loads("".join(pieces))
        return value

    async def _finish(self, work: _Work, outcome: AppOutcome) -> None:
        match outcome:
            case AppAnswer(data):
                rest = data
                if data is not None and work.is_wanted:
                    rest = await self._send_pieces(work, data)
                await self._end(work, Done(work.id, rest))
            case A2aError(code, message, details, status, wait_s):
                extra: dict[str, Json] = {"code": code, "status": status}
                # A frame over the limit would end the link, and with it every other call.
                if details is not None and len(orjson.dumps(details)) <= self._inline_bytes // 2:
                    extra["data"] = details
                refused = Failed(work.id, "a2a", message[:_MESSAGE_CHARS], wait_s, extra)
                await self._end(work, refused)
            case HttpError(status, wait_s):
                word = "busy" if status in _BUSY else "status"
                extra = {"status": status}
                await self._end(work, Failed(work.id, word, f"HTTP {status}", wait_s, extra))
            case Fault(reason, is_too_long):
                known: JsonObject | None = {"tooLong": True} if is_too_long else None
                await self._end(work, Failed(work.id, "failed", reason, data=known))
            case _:
                assert_never(outcome)

    async def _end(self, work: _Work, frame: Done | Failed) -> None:
        if work.is_wanted:
            self._work.pop(work.id, None)
            await self._send(frame)

    async def _send_pieces(self, work: _Work, data: JsonObject) -> JsonObject | None:
        """Returns content that fits into one frame; otherwise sends it in pieces and returns None."""
        packed = orjson.dumps(data)
        if len(packed) <= self._inline_bytes:
            return data
        for piece in in_chunks(packed.decode(), self._inline_bytes // _CHAR_BYTES):
            await self._send(AnswerPiece(work.id, piece))
        return None
