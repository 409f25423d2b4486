"""Calls to an agent over the socket that it dialled in with: matches answers to calls, and bounds items in flight.

A call has a window: the number of items that the agent may send before they are stored. It starts small, grows with
small items and shrinks with large ones. Credit is returned for stored items while the next item is asked for, so of a
call that is not read on, little is in the socket. An item beyond the credit is refused and ends its call: later items
would leave a gap.

The size of an item is only known as it arrives, so large ones may follow small ones in a wide window. Beyond a bound
the link ``waits``: its owner reads no frames until enough of what was received has been taken.

When the socket ends, all open calls end. That says nothing about the agent's work (I6): the caller asks for it over the
agent's next socket.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import count
from typing import TYPE_CHECKING, Final, TypeAlias, assert_never

import orjson

from passerelle.core.chunks import in_chunks
from passerelle.core.errors import InvalidInput
from passerelle.core.frozen import frozen
from passerelle.protocol.frames import Refusal
from passerelle.protocol.reverse_frames import (
    AGENT_METHODS,
    HOST_IDS,
    PIECE_CHARS,
    AgentCall,
    AnswerItem,
    AnswerPiece,
    CallPiece,
    Credit,
    Done,
    Failed,
    StopWaiting,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from passerelle.core.wire.json import Json, JsonObject
    from passerelle.protocol.reverse_frames import AnswerFrame, HostFrame

MAX_ANSWER_BYTES: Final = 16 * 1024 * 1024
"""Limit of one answer or item, with all its pieces."""
MOST_HELD_BYTES: Final = 4 * MAX_ANSWER_BYTES
"""Received in pieces over one link and not taken: with more, the socket is not read."""
_FIRST_ITEMS: Final = 2
"""The window before the size of the items is known."""
_SMALL_BYTES: Final = 262_144
_WINDOW_BYTES: Final = 4 * 1024 * 1024
"""What the window of a call with large items may hold, or one larger item."""


@frozen
class ItemReceived:
    """An item of a streaming call."""

    data: JsonObject


@frozen
class AnswersEnded:
    """The answer, or the end of a stream; ``data`` of a stream is empty."""

    data: JsonObject


@frozen
class AskRefused:
    """The agent reports a failure."""

    failure: Failed


@frozen
class AnswersBroken:
    """The agent's answer is invalid; ``too_long``: a repeat would be too long again."""

    reason: str
    too_long: bool


@frozen
class SocketEnded:
    """The socket has ended. The agent's progress is unknown."""


ReverseOutcome: TypeAlias = ItemReceived | AnswersEnded | AskRefused | AnswersBroken | SocketEnded


class OpenCall:
    """One call, from its frame to its end. ``receive`` returns the agent's answers, in order."""

    def __init__(self, call_id: str, agent: str, window: int, link: AgentLink) -> None:
        self.id = call_id
        self.agent = agent
        self._most = window
        self._window = self._credit = min(window, _FIRST_ITEMS)
        self._link = link
        self._received: asyncio.Queue[tuple[ReverseOutcome, int]] = asyncio.Queue()
        self._held_bytes = 0
        self._is_asked = False
        self._unreleased = 0
        self._pieces: list[str] = []
        self._piece_bytes = 0
        self._over = False

    @property
    def window(self) -> int:
        """The number of items that may be in transit to the store."""
        return self._window

    @property
    def is_over(self) -> bool:
        """Whether the call has ended."""
        return self._over

    async def receive(self) -> ReverseOutcome:
        """The next answer. After anything but an item there is none."""
        self._is_asked = True
        self._give_credit()
        try:
            outcome, size = await self._received.get()
        finally:
            self._is_asked = False
        self._hold(-size)
        return outcome

    def release(self) -> None:
        """An item is stored: its place in the window is free again."""
        self._unreleased -= 1
        self._give_credit()

    def _give_credit(self) -> None:
        items = self._window - self._unreleased - self._credit
        if items > 0 and self._is_asked and not self._over:
            self._credit += items
            self._link.send(Credit(self.id, items))

    def abandon(self) -> None:
        """Stops waiting; the agent continues its work."""
        self._link.forget(self)
        self._hold(-self._held_bytes)
        if not self._over:
            self._over = True
            self._link.send(StopWaiting(self.id))

    def take(self, frame: AnswerFrame) -> Refusal | None:
        """Processes an answer frame; returns a refusal if it is not allowed."""
        try:
            return self._take(frame)
        except InvalidInput as error:
            self._break(str(error))
            return Refusal("invalid_input", str(error), of=frame.TAG)

    def _take(self, frame: AnswerFrame) -> Refusal | None:
        match frame:
            case AnswerPiece(text=text):
                return self._take_piece(text)
            case AnswerItem(data=data):
                if not self._credit:
                    self._break("the agent sent more items than its window has")
                    return Refusal("window", "more items than the window has", of="item")
                self._credit -= 1
                self._unreleased += 1
                size = self._piece_bytes
                self._window = _resize(self._window, self._most, size)
                self._put(ItemReceived(self._assemble(data)), size)
            case Done(data=data):
                size = self._piece_bytes
                self.end(AnswersEnded(self._assemble(data)), size)
            case Failed():
                self.end(AskRefused(frame))
            case _:
                assert_never(frame)
        return None

    def _put(self, outcome: ReverseOutcome, size: int) -> None:
        self._received.put_nowait((outcome, size))
        self._hold(size)

    def _hold(self, size: int) -> None:
        self._held_bytes += size
        self._link.hold(size)

    def _take_piece(self, text: str) -> Refusal | None:
        self._piece_bytes += len(text)
        if self._piece_bytes > MAX_ANSWER_BYTES:
            self._break(f"an answer over {MAX_ANSWER_BYTES} bytes", too_long=True)
            return Refusal("too_large", f"at most {MAX_ANSWER_BYTES} bytes", of="more")
        self._pieces.append(text)
        return None

    def _assemble(self, data: JsonObject | None) -> JsonObject:
        if not self._pieces:
            return data or {}
        text = "".join(self._pieces)
        self._pieces, self._piece_bytes = [], 0
        value: Json = None
        with suppress(orjson.JSONDecodeError):
            value = orjson.loads(text)
        if not isinstance(value, dict):
            raise InvalidInput("x", "the pieces are not a JSON object")
        return value

    def _break(self, reason: str, *, too_long: bool = False) -> None:
        was_open = not self._over
        self.end(AnswersBroken(reason, too_long))
        if was_open:
            self._link.send(StopWaiting(self.id))

    def end(self, last: ReverseOutcome, size: int = 0) -> None:
        """Ends the call with ``last``, of which ``size`` bytes came in pieces."""
        if not self._over:
            self._over = True
            self._pieces = []
            self._link.forget(self)
            self._put(last, size)


def _resize(window: int, most: int, size: int) -> int:
    """The window after an item of ``size`` bytes."""
    if size <= _SMALL_BYTES:
        return min(window + 1, most)
    return min(window, max(_WINDOW_BYTES // size, 1))


@dataclass(slots=True, eq=False)
class AgentLink:
    """One socket of an agent. ``send`` adds a frame to its outbox; the owner of the socket calls ``take``.

    While the link ``waits``, it must not be called; then ``resume`` is.
    """

    connection: str
    send: Callable[[HostFrame], None]
    resume: Callable[[], None] = lambda: None
    held_bytes: int = 0
    """Received in pieces and not taken."""
    _calls: dict[str, OpenCall] = field(default_factory=dict[str, OpenCall])
    _numbers: count[int] = field(default_factory=lambda: count(1))
    _is_cut: bool = False

    @property
    def is_cut(self) -> bool:
        """Whether the socket has ended."""
        return self._is_cut

    @property
    def waits(self) -> bool:
        """Whether so much was received and not taken that no more may be read."""
        return self.held_bytes > MOST_HELD_BYTES

    def hold(self, size: int) -> None:
        """Counts ``size`` bytes more, or less, that were received and not taken."""
        did_wait = self.waits
        self.held_bytes += size
        if did_wait and not self.waits:
            self.resume()

    @property
    def calls(self) -> int:
        """Number of open calls."""
        return len(self._calls)

    def open(
        self,
        agent: str,
        method: str,
        data: JsonObject,
        headers: Mapping[str, str],
        *,
        deadline_ms: int,
        window: int,
    ) -> OpenCall:
        """Sends a call; the socket must not have ended."""
        call = OpenCall(f"{HOST_IDS}{next(self._numbers)}", agent, window, self)
        self._calls[call.id] = call
        inline: JsonObject | None = data
        packed = orjson.dumps(data)
        if len(packed) > PIECE_CHARS:
            inline = None
            for piece in in_chunks(packed.decode(), PIECE_CHARS):
                self.send(CallPiece(call.id, piece))
        frame = AgentCall(
            id=call.id,
            to=agent,
            method=AGENT_METHODS + method,
            deadline_ms=deadline_ms,
            window=call.window,
            headers={**headers},
            data=inline,
        )
        self.send(frame)
        return call

    def take(self, frame: AnswerFrame) -> Refusal | None:
        """Passes an answer to its call; answers to finished calls are ignored."""
        call = self._calls.get(frame.id)
        return None if call is None else call.take(frame)

    def forget(self, call: OpenCall) -> None:
        """Removes a finished call."""
        self._calls.pop(call.id, None)

    def cut(self, agent: str | None = None) -> None:
        """Ends the calls of an agent that this socket no longer serves; without ``agent``, all calls."""
        self._is_cut = self._is_cut or agent is None
        for call in tuple(self._calls.values()):
            if agent in {None, call.agent}:
                call.end(SocketEnded())
