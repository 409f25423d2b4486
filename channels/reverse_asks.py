"""Calls of one connected agent to other agents: concurrent, and each stream as fast as its reader.

Authorization and execution are those of ``AskedAgents``, the same for every caller. The end of the socket cancels
nothing: a started call continues, and can be followed again by its task (I6).
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Protocol, assert_never

import orjson

from passerelle.channels.calls import refuse_call
from passerelle.core.chunks import in_chunks
from passerelle.core.errors import InvalidInput, PasserelleError, TooLarge
from passerelle.core.frozen import frozen
from passerelle.protocol.frames import Answer, Call, Failure, Refusal
from passerelle.protocol.reverse_frames import (
    AGENT_METHODS,
    PIECE_CHARS,
    AnswerPiece,
    CallPiece,
    StopAsking,
    TakeMore,
)
from passerelle.protocol.wire import build_item, encode_server

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine, Mapping

    from passerelle.channels.outbox import Outbox
    from passerelle.core.principal import Principal
    from passerelle.core.wire.json import Json, JsonObject
    from passerelle.protocol.reverse_frames import AskingFrame

MAX_CALL_CHARS: Final = 1_048_576
"""Limit for all calls of one connection that are received in pieces."""
MOST_ITEMS: Final = 1_024
_WINDOW: Final = 32
_PIECE_COST: Final = 64
"""Minimum size counted per piece, so that empty pieces are bounded as well."""


@frozen
class AgentAsk:
    """One call. ``method`` is its A2A name, ``find_principal`` returns the caller with its current rights."""

    find_principal: Callable[[], Principal]
    to: str
    method: str
    params: JsonObject
    headers: Mapping[str, str]
    idem: str | None


class AskedAgents(Protocol):
    """The agents, as every caller reaches them."""

    async def ask(
        self,
        ask: AgentAsk,
        deliver: Callable[[bytes, str], Awaitable[None]],
        answer: Callable[[JsonObject], Awaitable[None]],
    ) -> None:
        """Carries out a call; may be cancelled at any time.

        Each item of a stream, with the cursor after it, is passed to ``deliver``, the result of any other call to
        ``answer``. Both return when a long content was sent.

        Raises:
            PasserelleError: why there is no answer, in a form that the caller may see.
        """
        ...


@dataclass(slots=True, eq=False)
class _Open:
    """One call in progress. ``untaken`` items were sent and not confirmed; ``room`` is the rest of its window."""

    id: str
    room: asyncio.Semaphore
    task: asyncio.Task[None] | None = None
    items: int = 0
    untaken: int = 0


@dataclass(slots=True)
class AskingSide:
    """The calls of one connection. ``answer`` feeds its state machine, ``refuse`` reports an invalid frame."""

    agents: AskedAgents
    outbox: Outbox
    find_principal: Callable[[], Principal]
    answer: Callable[[Answer | Failure], None]
    refuse: Callable[[Refusal], None]
    spawn: Callable[[Coroutine[None, None, None]], asyncio.Task[None]]
    _open: dict[str, _Open] = field(default_factory=dict[str, _Open])
    _pieces: dict[str, list[str] | None] = field(default_factory=dict[str, "list[str] | None"])
    """None: the pieces exceeded the limit."""
    _held: int = 0

    def take(self, frame: Call | AskingFrame | AnswerPiece) -> None:
        """A call, or a frame about one; frames about finished calls are ignored."""
        match frame:
            case Call():
                self._begin(frame)
            case TakeMore(call, items):
                if (found := self._open.get(call)) is not None:
                    _release_items(found, items)
            case StopAsking(call):
                self._stop(call)
            case AnswerPiece():
                self._keep(frame)
            case _:
                assert_never(frame)

    def _begin(self, call: Call) -> None:
        window = min(call.window or _WINDOW, MOST_ITEMS)
        opened = self._open[call.id] = _Open(call.id, asyncio.Semaphore(window))
        opened.task = self.spawn(self._serve(opened, call))

    def _stop(self, call: str) -> None:
        opened = self._open.pop(call, None)
        if opened is not None and opened.task is not None:
            opened.task.cancel()
            self.answer(Failure(call, "cancelled", "the caller has stopped waiting"))

    async def _serve(self, opened: _Open, call: Call) -> None:
        answer = await self._execute(opened, call)
        if self._open.get(call.id) is opened:
            del self._open[call.id]
            self.answer(answer)

    async def _execute(self, opened: _Open, call: Call) -> Answer | Failure:
        result: JsonObject = {}

        async def deliver(data: bytes, cursor: str) -> None:
            await opened.room.acquire()
            await self.outbox.wait_for_room()
            opened.items += 1
            opened.untaken += 1
            rest = None if await self._send_ahead(call.id, data) else data
            self.outbox.put(build_item(call.id, opened.items, cursor, rest))

        async def answer(found: JsonObject) -> None:
            nonlocal result
            result = {} if await self._send_ahead(call.id, orjson.dumps(found)) else found

        try:
            ask = AgentAsk(
                self.find_principal,
                call.to or "",
                call.method.removeprefix(AGENT_METHODS),
                self._assemble(call),
                {name.lower(): str(value) for name, value in (call.headers or {}).items()},
                call.idem,
            )
            await self.agents.ask(ask, deliver, answer)
        except PasserelleError as error:
            return refuse_call(call.id, error)
        return Answer(call.id, result)

    async def _send_ahead(self, call: str, data: bytes) -> bool:
        """Sends data that is too long for one frame in pieces, as fast as they are read; returns whether it did."""
        if len(data) <= PIECE_CHARS:
            return False
        for piece in in_chunks(data.decode(), PIECE_CHARS):
            await self.outbox.wait_for_room()
            self.outbox.put(encode_server(CallPiece(call, piece)))
        return True

    # Calls in pieces

    def _keep(self, piece: AnswerPiece) -> None:
        held = self._pieces.setdefault(piece.id, [])
        if held is None:
            return
        self._held += _count_chars(piece.text)
        held.append(piece.text)
        if self._held > MAX_CALL_CHARS:
            self._held -= sum(map(_count_chars, held))
            self._pieces[piece.id] = None
            self.refuse(Refusal("too_large", f"at most {MAX_CALL_CHARS} characters", of="more"))

    def _assemble(self, call: Call) -> JsonObject:
        if call.id not in self._pieces:
            return call.data
        held = self._pieces.pop(call.id)
        if held is None:
            raise TooLarge("the call", MAX_CALL_CHARS)
        self._held -= sum(map(_count_chars, held))
        value: Json = None
        with suppress(orjson.JSONDecodeError):
            value = orjson.loads("".join(held))
        if not isinstance(value, dict):
            raise InvalidInput("x", "the pieces are not a JSON object")
        return value


def _release_items(opened: _Open, items: int) -> None:
    """Frees window space for confirmed items, at most as many as were sent."""
    taken = min(items, opened.untaken)
    opened.untaken -= taken
    for _ in range(taken):
        opened.room.release()


def _count_chars(text: str) -> int:
    return len(text) + _PIECE_COST
