"""An agent's outbound calls at the gateway's side of its link: windows, chunks, and abandoned calls."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import suppress
from dataclasses import dataclass, field

import orjson
import pytest

from passerelle.channels.outbox import Outbox
from passerelle.channels.reverse_asks import MAX_CALL_CHARS, AgentAsk, AskingSide
from passerelle.core.chunks import in_chunks
from passerelle.core.errors import NotFound
from passerelle.core.principal import Principal
from passerelle.core.wire.json import JsonObject
from passerelle.protocol.frames import Answer, Call, Failure, Refusal
from passerelle.protocol.reverse_frames import (
    PIECE_CHARS,
    AnswerPiece,
    CallPiece,
    StopAsking,
    StreamItem,
    TakeMore,
)
from passerelle.protocol.wire import decode_server, split_message
from tests.support.waiting import wait_until

pytestmark = pytest.mark.anyio


class Agents:
    """Answers by the method that is asked for."""

    def __init__(self) -> None:
        self.asked: list[AgentAsk] = []
        self.given = 0
        self.left = 0
        self.sent = 0

    async def ask(
        self,
        ask: AgentAsk,
        deliver: Callable[[bytes, str], Awaitable[None]],
        answer: Callable[[JsonObject], Awaitable[None]],
    ) -> None:
        self.asked.append(ask)
        match ask.method:
            case "Wait":
                try:
                    await asyncio.Event().wait()
                finally:
                    self.left += 1
            case "End":
                with suppress(asyncio.CancelledError):
                    await asyncio.Event().wait()
                self.left += 1
            case "Count":
                for number in range(1, 11):
                    await deliver(b'{"task":{"id":"t"}}', f"c{number}")
                    self.given += 1
            case "Refuse":
                raise NotFound("agent", ask.to)
            case _:
                pass
        await answer(ask.params)
        self.sent += 1


class Wire:
    """A socket that takes everything."""

    is_writable = True
    buffered = 0

    def __init__(self) -> None:
        self.frames: list[object] = []

    def write(self, message: bytes) -> None:
        self.frames += [decode_server(line) for line in split_message(message)]

    def pause(self) -> None:
        raise AssertionError

    resume = abort = pause

    def close(self, code: int, reason: str) -> None:
        raise AssertionError


@dataclass
class Side:
    """One link, and the inputs of its machine."""

    agents: Agents = field(default_factory=Agents)
    wire: Wire = field(default_factory=Wire)
    answers: list[Answer | Failure] = field(default_factory=list[Answer | Failure])
    refused: list[str] = field(default_factory=list[str])
    asking: AskingSide = field(init=False)

    def __post_init__(self) -> None:
        self.asking = AskingSide(
            self.agents,
            Outbox(self.wire, 65_536, 30, lambda: None),
            lambda: Principal("asker"),
            self.answers.append,
            self._refuse,
            self._spawn,
        )

    def _refuse(self, refusal: Refusal) -> None:
        self.refused.append(refusal.code)

    def _spawn(self, work: Coroutine[None, None, None]) -> asyncio.Task[None]:
        return asyncio.create_task(work)

    def ask(self, call: str, method: str, data: JsonObject | None = None, **more: int) -> None:
        window = more.get("window")
        self.asking.take(Call(call, f"a2a:{method}", None, data or {}, "b", window))

    async def until_answered(self, count: int = 1) -> Answer | Failure:
        await wait_until(lambda: len(self.answers) >= count, 10, f"{count} calls are answered")
        return self.answers[count - 1]


async def test_an_answer_and_a_refusal_come_under_the_id_of_their_call() -> None:
    side = Side()
    side.ask("1", "Echo", {"x": 1})
    assert await side.until_answered() == Answer("1", {"x": 1})
    side.ask("2", "Refuse")
    failure = await side.until_answered(2)
    assert isinstance(failure, Failure)
    assert (failure.id, failure.code) == ("2", "not_found")
    assert [(one.to, one.method) for one in side.agents.asked] == [("b", "Echo"), ("b", "Refuse")]


async def test_a_stream_stops_at_its_window_and_continues_with_credit() -> None:
    side = Side()
    side.ask("s", "Count", window=3)
    await wait_until(lambda: len(side.wire.frames) == 3, 10, "the window is full")
    side.asking.take(TakeMore("s", 1_000_000))
    await wait_until(lambda: len(side.wire.frames) == 6, 10, "what was sent is given back")
    assert (side.agents.given, side.answers) == (6, [])
    for _ in range(2):
        side.asking.take(TakeMore("s", 3))
        await wait_until(lambda: len(side.wire.frames) in {9, 10}, 10, "it goes on")
    assert await side.until_answered() == Answer("s", {})
    assert side.wire.frames == [
        StreamItem("s", number, f"c{number}", {"task": {"id": "t"}}) for number in range(1, 11)
    ]


async def test_a_stopped_call_is_cancelled_and_its_id_is_free() -> None:
    side = Side()
    side.ask("1", "Wait")
    await wait_until(lambda: side.agents.asked, 10, "it is under way")
    side.asking.take(StopAsking("1"))
    assert [(one.id, getattr(one, "code", "")) for one in side.answers] == [("1", "cancelled")]
    await wait_until(lambda: side.agents.left == 1, 10, "it is left")
    side.asking.take(StopAsking("1"))
    side.ask("1", "Echo", {"x": 2})
    assert await side.until_answered(2) == Answer("1", {"x": 2})


async def test_a_call_that_ends_while_it_is_stopped_is_answered_once() -> None:
    side = Side()
    side.ask("1", "End")
    await wait_until(lambda: side.agents.asked, 10, "it is under way")
    side.asking.take(StopAsking("1"))
    await wait_until(lambda: side.agents.left == 1, 10, "it has ended")
    side.ask("2", "Echo")
    await side.until_answered(2)
    assert [one.id for one in side.answers] == ["1", "2"]


async def test_a_call_that_is_stopped_before_it_began_is_answered_once() -> None:
    side = Side()
    side.ask("1", "Echo")
    side.asking.take(StopAsking("1"))
    side.ask("2", "Echo")
    await side.until_answered(2)
    assert [one.id for one in side.answers] == ["1", "2"]
    assert [type(one) for one in side.answers] == [Failure, Answer]


async def test_long_content_comes_and_goes_in_pieces() -> None:
    side = Side()
    text = orjson.dumps({"text": "é" * PIECE_CHARS}).decode()
    for part in in_chunks(text, 50_000):
        side.asking.take(AnswerPiece("1", part))
    side.ask("1", "Echo")
    assert await side.until_answered() == Answer("1", {})

    def join_pieces() -> str:
        pieces = [one for one in side.wire.frames if isinstance(one, CallPiece)]
        return "".join(one.text for one in pieces if one.id == "1")

    # The answer is taken at once here, and the last piece is written in the next turn of the loop.
    await wait_until(lambda: len(join_pieces()) >= len(text), 10, "all pieces are written")
    assert join_pieces() == text


async def test_long_answer_waits_for_its_reader() -> None:
    side = Side()
    text = orjson.dumps({"text": "x" * 3 * PIECE_CHARS}).decode()
    for part in in_chunks(text, 50_000):
        side.asking.take(AnswerPiece("1", part))
    side.wire.is_writable = False
    side.ask("1", "Echo")
    await wait_until(lambda: side.agents.asked, 10, "the call is carried out")
    await asyncio.sleep(0)
    assert (side.agents.sent, side.asking.outbox.size_bytes) == (0, 0)
    side.wire.is_writable = True
    side.asking.outbox.take_room()
    assert await side.until_answered() == Answer("1", {})
    assert side.agents.sent == 1


@pytest.mark.parametrize("text", ["x" * 50_000, ""])
async def test_pieces_are_bounded_over_all_calls_and_what_is_too_long_is_not_carried_out(
    text: str,
) -> None:
    side = Side()
    side.asking.take(AnswerPiece("kept", '{"x":'))
    while not side.refused:
        side.asking.take(AnswerPiece("long", text))
    side.asking.take(AnswerPiece("long", text))
    assert side.refused == ["too_large"], "the rest of it is passed over"
    side.ask("long", "Echo")
    failure = await side.until_answered()
    assert isinstance(failure, Failure)
    assert (failure.code, side.agents.asked) == ("too_large", [])
    side.asking.take(AnswerPiece("kept", f'"{"y" * (MAX_CALL_CHARS - 1_000)}"}}'))
    side.ask("kept", "Echo")
    await wait_until(lambda: side.agents.asked, 10, "there is room again")


async def test_pieces_that_are_no_object_are_refused() -> None:
    side = Side()
    side.asking.take(AnswerPiece("1", "[1"))
    side.ask("1", "Echo")
    failure = await side.until_answered()
    assert isinstance(failure, Failure)
    assert (failure.code, side.agents.asked) == ("invalid_input", [])
