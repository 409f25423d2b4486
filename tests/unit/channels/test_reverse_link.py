"""Calls to an agent over its own socket: matching of answers, the window, chunks, and a socket that ends."""

from __future__ import annotations

import asyncio

import pytest

from passerelle.channels.reverse_link import (
    MAX_ANSWER_BYTES,
    MOST_HELD_BYTES,
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
        next_item = asyncio.create_task(call.receive())
        await asyncio.sleep(0)
        assert wire.sent[-1] == Credit(call.id, 1)
        next_item.cancel()
        await asyncio.sleep(0)


class Stored:
    """Takes and stores all items of a call as they come; ``credit`` is what its agent may still send."""

    def __init__(self, wire: Wire, call: OpenCall) -> None:
        self._wire, self._call, self._number = wire, call, 0
        (asked,) = (frame for frame in wire.sent if isinstance(frame, AgentCall))
        self._given = asked.window or 0

    @property
    def credit(self) -> int:
        more = sum(frame.number for frame in self._wire.sent if isinstance(frame, Credit))
        return self._given + more - self._number

    async def take(self, size: int) -> None:
        """One item of about ``size`` bytes, and what is given for the next one."""
        self._number += 1
        assert self._wire.deliver(*write_item(self._call, self._number, size)) == []
        await self._call.receive()
        self._call.release()
        next_item = asyncio.create_task(self._call.receive())
        await asyncio.sleep(0)
        next_item.cancel()
        await asyncio.sleep(0)


def write_item(call: OpenCall, number: int, size: int) -> tuple[AnswerPiece, AnswerItem]:
    return AnswerPiece(call.id, '{"x":"' + "x" * size + '"}'), AnswerItem(call.id, number)


async def test_the_window_grows_with_small_items_and_shrinks_with_large_ones() -> None:
    wire = Wire()
    stored = Stored(wire, wire.open(window=32))
    assert stored.credit <= 2
    for _ in range(40):
        await stored.take(100)
    assert stored.credit == 32
    # What was given is not taken back: an agent that keeps to its credit is not refused.
    for _ in range(40):
        await stored.take(1_000_000)
    assert stored.credit == 4
    for _ in range(8):
        await stored.take(10_000_000)
    assert stored.credit == 1
    await stored.take(100)
    assert stored.credit == 2


async def test_a_call_that_is_not_read_on_gets_no_credit() -> None:
    wire = Wire()
    call = wire.open(window=32)
    for number in (1, 2):
        wire.deliver(AnswerItem(call.id, number, {}))
        await call.receive()
    sent = len(wire.sent)
    call.release()
    call.release()
    assert len(wire.sent) == sent


async def test_a_link_waits_while_much_is_not_taken() -> None:
    resumed: list[bool] = []
    wire = Wire()
    wire.link.resume = lambda: resumed.append(True)
    calls = [wire.open() for _ in range(3)]
    size = MOST_HELD_BYTES // 5
    for call in calls[:2]:
        for number in (1, 2):
            wire.deliver(*write_item(call, number, size))
    was_read = not wire.link.waits
    wire.deliver(AnswerPiece(calls[2].id, '{"x":"' + "x" * size + '"}'), Done(calls[2].id))
    assert (was_read, wire.link.waits) == (True, True)
    assert isinstance(await calls[2].receive(), AnswersEnded)
    assert resumed == [True]
    wire.link.cut()
    for call in calls:
        call.abandon()
    assert wire.link.held_bytes == 0


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
