"""An agent's outbound calls at its side of the link: what is sent, late frames, and an end without a new link."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import cast

import pytest

from passerelle.client.items import AnswersCut, CallRefused, ChannelStopped, Stopped
from passerelle.client.link import Link
from passerelle.client.outbound_calls import OutboundCalls, OutboundRequest, Reply
from passerelle.core.wire.json import JsonObject
from passerelle.protocol.closing import CloseCode
from passerelle.protocol.frames import Answer, Call, ClientFrame, Failure
from passerelle.protocol.reverse_frames import (
    AnswerPiece,
    CallPiece,
    StopAsking,
    StreamItem,
    TakeMore,
)
from tests.support.waiting import wait_until

pytestmark = pytest.mark.anyio

LIMIT = 65_536


class FakeLink:
    """Keeps what is sent over it."""

    def __init__(self) -> None:
        self.sent: list[ClientFrame] = []
        self.welcome = SimpleNamespace(limits={"in": LIMIT})

    async def send(self, frame: ClientFrame) -> bool:
        self.sent.append(frame)
        return True

    async def until(self, count: int) -> ClientFrame:
        await wait_until(lambda: len(self.sent) >= count, 10, f"{count} frames are sent")
        return self.sent[count - 1]


async def begin(asks: OutboundCalls) -> FakeLink:
    link = FakeLink()
    await asks.begin(cast("Link", link))
    return link


def call(asks: OutboundCalls, data: JsonObject | None = None) -> asyncio.Task[JsonObject]:
    return asyncio.create_task(asks.call(OutboundRequest("b", "GetTask", data or {}, None, None)))


def stream(asks: OutboundCalls) -> asyncio.Task[Reply]:
    replies = asks.stream(OutboundRequest("b", "SubscribeToTask", {}, None, None), 4)
    return asyncio.create_task(anext(replies))


async def test_a_call_waits_for_a_link_and_a_stream_does() -> None:
    asks = OutboundCalls()
    calling, streaming = call(asks), stream(asks)
    await asyncio.sleep(0)
    link = await begin(asks)
    await link.until(2)
    sent = {one.id: one for one in link.sent if isinstance(one, Call)}
    assert {one.method for one in sent.values()} == {"a2a:GetTask", "a2a:SubscribeToTask"}
    assert not any(one.startswith("g") for one in sent), "ids of the gateway begin so"
    asks.take(Answer("1", {"id": "t"}))
    asks.take(StreamItem("s1", 1, "c1", {"task": {"id": "t"}}))
    assert await calling == {"id": "t"}
    assert await streaming == Reply({"task": {"id": "t"}}, "c1")


async def test_long_content_is_sent_and_read_in_pieces() -> None:
    asks = OutboundCalls()
    link = await begin(asks)
    calling = call(asks, {"text": "é" * LIMIT})
    await wait_until(lambda: any(isinstance(one, Call) for one in link.sent), 10, "it is sent")
    *pieces, last = link.sent
    assert isinstance(last, Call)
    assert "".join(one.text for one in pieces if isinstance(one, AnswerPiece)).count("é") == LIMIT
    assert (len(pieces) > 1, last.data) == (True, {})
    for text in ('{"id":', '"t"}'):
        asks.take(CallPiece(last.id, text))
    asks.take(Answer(last.id))
    assert await calling == {"id": "t"}


async def test_a_cancelled_call_is_stopped_and_late_frames_are_ignored() -> None:
    asks = OutboundCalls()
    link = await begin(asks)
    calling = call(asks)
    await link.until(1)
    calling.cancel()
    assert await link.until(2) == StopAsking("1")
    asks.take(Failure("1", "cancelled", ""))
    asks.take(StreamItem("s9", 1, None, {}))
    asks.take(CallPiece("1", "{"))
    again = call(asks)
    await link.until(3)
    asks.take(Answer("2", {"x": 1}))
    assert await again == {"x": 1}


async def test_each_answer_that_was_taken_gives_its_place_back_and_an_error_ends_the_stream() -> (
    None
):
    asks = OutboundCalls()
    link = await begin(asks)
    replies = asks.stream(OutboundRequest("b", "SubscribeToTask", {}, None, None), 4)
    first = asyncio.create_task(anext(replies))
    assert getattr(await link.until(1), "window", None) == 4
    asks.take(StreamItem("s1", 1, "c1", {"statusUpdate": {"taskId": "t"}}))
    asks.take(Failure("s1", "store_unavailable", "gone", 3))
    assert (await first).cursor == "c1"
    assert link.sent[1:] == []
    with pytest.raises(CallRefused) as refused:
        await anext(replies)
    assert (refused.value.code, refused.value.retry_s) == ("store_unavailable", 3)
    assert link.sent[1:] == [TakeMore("s1", 1)]


async def test_a_link_that_ends_cuts_its_streams_behind_what_has_come() -> None:
    asks = OutboundCalls()
    link = await begin(asks)
    replies = asks.stream(OutboundRequest("b", "SendStreamingMessage", {}, None, None), 4)
    first = asyncio.create_task(anext(replies))
    await link.until(1)
    asks.take(StreamItem("s1", 1, "c1", {"task": {"id": "t"}}))
    asks.cut()
    assert (await first).cursor == "c1"
    with pytest.raises(AnswersCut) as cut:
        await anext(replies)
    assert (cut.value.task, cut.value.cursor) == ("t", "c1")
    assert not any(isinstance(one, StopAsking) for one in link.sent)


async def test_the_end_of_the_client_fails_every_waiting_call() -> None:
    asks = OutboundCalls()
    waiting = [call(asks), stream(asks)]
    await asyncio.sleep(0)
    asks.fail(ChannelStopped(Stopped(CloseCode.SUPERSEDED)))
    waiting.append(call(asks))
    for one in waiting:
        with pytest.raises(ChannelStopped):
            await one
