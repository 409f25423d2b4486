"""The calls that come to an agent over one link: each one worked on beside the others, each answer as far as it may go.

A stream sends an item when its window has room, and waits otherwise; so does the application behind it. A link that
ends makes every call one that nobody waits for: the application works on, what it says goes nowhere.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, assert_never

import orjson

from passerelle.client.asgi_app import A2aError, AppAnswer, Fault, HttpError
from passerelle.protocol.pieces import split_text
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
"""Of a frame, for what stands around its content."""
_CHAR_BYTES: Final = 4
"""Of one character at most, escaped and in UTF-8."""
_BUSY: Final = frozenset({429, 503})
_MOST_ITEMS: Final = 2**20


@dataclass(slots=True)
class _Work:
    """One call that the application works on. ``room`` is what may still be sent of a stream."""

    id: str
    room: asyncio.Semaphore
    exchange: AppExchange | None = None
    is_wanted: bool = True
    items: int = 0

    def leave(self) -> None:
        """Nobody waits any more."""
        self.is_wanted = False
        self.room.release()
        if self.exchange is not None:
            self.exchange.leave()


class ServedCalls:
    """Those of one link. ``send`` is its way out, and returns when the frame has been taken."""

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
        """What the gateway says about a call, beside the call itself."""
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
        """Nobody waits for a call any more."""
        work = self._work.pop(call, None)
        if work is not None:
            work.leave()

    def cut(self) -> None:
        """The link has ended."""
        for call in tuple(self._work):
            self.stop(call)

    def begin(self, call: AgentCall) -> Coroutine[None, None, None]:
        """Takes a call; what it returns works on it to its end."""
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
            if work.is_wanted:  # it may not be any more
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
            case A2aError(code, message, details):
                said: dict[str, Json] = {"code": code}
                if details is not None:
                    said["data"] = details
                await self._end(work, Failed(work.id, "a2a", message, data=said))
            case HttpError(status, retry):
                wait_s = int(retry) if retry is not None and retry.isdigit() else None
                word = "busy" if status in _BUSY else "status"
                said = {"status": status}
                await self._end(work, Failed(work.id, word, f"HTTP {status}", wait_s, said))
            case Fault(reason):
                await self._end(work, Failed(work.id, "failed", reason))
            case _:
                assert_never(outcome)

    async def _end(self, work: _Work, frame: Done | Failed) -> None:
        if work.is_wanted:
            self._work.pop(work.id, None)
            await self._send(frame)

    async def _send_pieces(self, work: _Work, data: JsonObject) -> JsonObject | None:
        """The content where it fits into one frame; else it goes ahead in pieces."""
        packed = orjson.dumps(data)
        if len(packed) <= self._inline_bytes:
            return data
        for piece in split_text(packed.decode(), self._inline_bytes // _CHAR_BYTES):
            await self._send(AnswerPiece(work.id, piece))
        return None
