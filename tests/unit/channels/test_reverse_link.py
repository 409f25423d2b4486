"""Calls to an agent over its own socket: matching of answers, the window, chunks, and a socket that ends."""

from __future__ import annotations

import asyncio

import pytest

from passerelle.channels.reverse_link import (
    MAX_ANSWER_BYTES,
    AgentLink,
    AnswersBroken,
    AnswersEnded,
    AskRefused,
    ItemReceived,
    OpenCall,
    SocketEnded,
)
from passerelle.core.wire.json import JsonObject
from passerelle.protocol.frames import Refusal
from passerelle.protocol.reverse_frames import (
    PIECE_CHARS,
    AgentCall,
    AnswerItem,
    AnswerPiece,
    CallPiece,
    Credit,
    Done,
    Failed,
    HostFrame,
    StopWaiting,
)

pytestmark = pytest.mark.anyio


class Wire:
    def __init__(self) -> None:
        self.sent: list[HostFrame] = []
        self.link = AgentLink("cn_1", self.sent.append)

    def open(self, data: JsonObject | None = None, window: int = 2) -> OpenCall:
        headers = {"A2A-Version": "1.0"}
        return self.link.open(
            "a", "SendMessage", data or {}, headers, deadline_ms=1_000, window=window
        )

    def deliver(self, *frames: AnswerItem | AnswerPiece | Done | Failed) -> list[str]:
        refused = [self.link.take(frame) for frame in frames]
        return [one.code for one in refused if isinstance(one, Refusal)]


async def test_answers_reach_the_call_that_they_name() -> None:
    wire = Wire()
    first, second = wire.open(), wire.open()
    assert [type(frame) for frame in wire.sent] == [AgentCall, AgentCall]
    assert first.id != second.id
    assert (
        wire.deliver(Done(second.id, {"n": 2}), AnswerItem(first.id, 1, {"n": 1}), Done(first.id))
        == []
    )
    assert await second.receive() == AnswersEnded({"n": 2})
    assert [await first.receive(), await first.receive()] == [
        ItemReceived({"n": 1}),
        AnswersEnded({}),
    ]
    assert wire.link.calls == 0


async def test_frames_of_a_finished_call_are_ignored() -> None:
    wire = Wire()
    call = wire.open()
    call.abandon()
    assert wire.deliver(AnswerItem(call.id, 1, {}), Done(call.id), AnswerItem("g99", 1, {})) == []
    assert wire.sent[-1] == StopWaiting(call.id)


async def test_an_item_beyond_the_window_is_refused_and_ends_its_call() -> None:
    wire = Wire()
    call = wire.open(window=2)
    assert wire.deliver(AnswerItem(call.id, 1, {}), AnswerItem(call.id, 2, {})) == []
    assert wire.deliver(AnswerItem(call.id, 3, {})) == ["window"]
    assert [type(await call.receive()) for _ in range(3)] == [
        ItemReceived,
        ItemReceived,
        AnswersBroken,
    ]
    assert wire.deliver(AnswerItem(call.id, 4, {})) == []


async def test_a_stored_item_gives_its_place_back() -> None:
    wire = Wire()
    call = wire.open(window=1)
    for number in range(1, 4):
        assert wire.deliver(AnswerItem(call.id, number, {"n": number})) == []
        assert await call.receive() == ItemReceived({"n": number})
        call.release()
        assert wire.sent[-1] == Credit(call.id, 1)


async def test_a_socket_that_ends_cuts_its_calls() -> None:
    wire = Wire()
    calls = [wire.open(), wire.open()]
    waiting = [asyncio.create_task(call.receive()) for call in calls]
    await asyncio.sleep(0)
    wire.link.cut()
    assert [await one for one in waiting] == [SocketEnded(), SocketEnded()]
    assert wire.link.is_cut


async def test_long_content_travels_in_pieces_both_ways() -> None:
    wire = Wire()
    call = wire.open({"text": "x" * 2 * PIECE_CHARS})
    assert [type(frame) for frame in wire.sent] == [CallPiece] * 3 + [AgentCall]
    asked = wire.sent[-1]
    assert isinstance(asked, AgentCall)
    assert asked.data is None
    assert (
        wire.deliver(
            AnswerPiece(call.id, '{"task":'), AnswerPiece(call.id, '{"id":"t"}}'), Done(call.id)
        )
        == []
    )
    assert await call.receive() == AnswersEnded({"task": {"id": "t"}})


@pytest.mark.parametrize("text", ["[1]", "{", '"x"'])
async def test_pieces_that_are_no_object_end_the_call(text: str) -> None:
    wire = Wire()
    call = wire.open()
    assert wire.deliver(AnswerPiece(call.id, text), Done(call.id)) == ["invalid_input"]
    assert isinstance(await call.receive(), AnswersBroken)


async def test_an_answer_without_end_is_cut_short() -> None:
    wire = Wire()
    call = wire.open()
    piece = "x" * (MAX_ANSWER_BYTES // 4)
    assert wire.deliver(*(AnswerPiece(call.id, piece) for _ in range(5))) == ["too_large"]
    assert await call.receive() == AnswersBroken(
        f"an answer over {MAX_ANSWER_BYTES} bytes", too_long=True
    )


async def test_a_failure_ends_the_call() -> None:
    wire = Wire()
    call = wire.open()
    failed = Failed(call.id, "busy", "later", 2)
    assert wire.deliver(failed) == []
    assert await call.receive() == AskRefused(failed)
