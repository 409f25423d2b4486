"""The outbox: order is kept, messages are bounded, large senders wait, and a stalled socket is closed."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

import pytest

from passerelle.channels.outbox import Outbox

pytestmark = pytest.mark.anyio


@dataclass
class Wire:
    """A socket whose other side reads on request."""

    is_writable: bool = True
    buffered: int = 0
    messages: list[bytes] = field(default_factory=list[bytes])
    stalls: int = 0

    def write(self, message: bytes) -> None:
        self.messages.append(message)

    def pause(self) -> None:
        raise NotImplementedError

    def resume(self) -> None:
        raise NotImplementedError

    def close(self, code: int, reason: str) -> None:
        raise NotImplementedError

    def abort(self) -> None:
        raise NotImplementedError

    def count_stall(self) -> None:
        self.stalls += 1


def make(wire: Wire, room_bytes: int = 1_000_000, stall_s: float = 30.0) -> Outbox:
    return Outbox(wire, room_bytes, stall_s, wire.count_stall)


async def test_frames_of_one_loop_turn_are_sent_as_one_message_in_order() -> None:
    wire = Wire()
    outbox = make(wire)
    for frame in (b"1", b"2", b"3"):
        outbox.put(frame)
    assert wire.messages == []
    await asyncio.sleep(0)
    assert wire.messages == [b"1\n2\n3"]
    await outbox.finish()
    outbox.put(b"late")
    await asyncio.sleep(0)
    assert wire.messages == [b"1\n2\n3"]


async def test_a_message_is_bounded_and_a_large_frame_goes_alone() -> None:
    wire = Wire()
    outbox = make(wire)
    for frame in (b"a" * 40_000, b"b" * 40_000, b"c" * 90_000, b"d"):
        outbox.put(frame)
    outbox.flush()
    assert [len(message) for message in wire.messages] == [40_000, 40_000, 90_000, 1]


async def test_room_is_waited_for_until_the_socket_takes_more() -> None:
    wire = Wire()
    outbox = make(wire, room_bytes=100)
    await outbox.wait_for_room()
    wire.is_writable = False
    outbox.put(b"x" * 100)
    waiting = asyncio.create_task(outbox.wait_for_room())
    await asyncio.sleep(0)
    assert not waiting.done()
    assert not outbox.write([b"made for many"])
    wire.is_writable = True
    outbox.take_room()
    async with asyncio.timeout(10):
        await waiting
    assert outbox.size_bytes == 0
    assert wire.messages == [b"x" * 100]


async def test_shared_message_is_sent_after_waiting_frames() -> None:
    wire = Wire()
    outbox = make(wire)
    assert outbox.write([b"at once"])
    assert wire.messages == [b"at once"]
    outbox.put(b"first")
    assert outbox.write([b"second", b"third"])
    assert wire.messages == [b"at once"]
    await asyncio.sleep(0)
    assert wire.messages == [b"at once", b"first\nsecond\nthird"]


async def test_the_end_waits_for_what_was_put_before_it() -> None:
    wire = Wire(is_writable=False)
    outbox = make(wire)
    outbox.put(b"last")
    ending = asyncio.create_task(outbox.finish())
    await asyncio.sleep(0)
    assert not ending.done()
    wire.is_writable = True
    outbox.take_room()
    async with asyncio.timeout(10):
        await ending
    assert wire.messages == [b"last"]


async def test_a_socket_that_takes_nothing_is_given_up_and_a_slow_one_is_not() -> None:
    stuck, slow = Wire(is_writable=False, buffered=100), Wire(is_writable=False, buffered=100)
    for wire in (stuck, slow):
        outbox = make(wire, stall_s=0.02)
        outbox.put(b"frame")
        outbox.flush()
    async with asyncio.timeout(10):
        while not stuck.stalls:
            slow.buffered -= 1
            await asyncio.sleep(0.001)
    assert slow.stalls == 0


async def test_a_wait_for_room_ends_when_the_socket_is_gone() -> None:
    wire = Wire(is_writable=False)
    outbox = make(wire, room_bytes=1)
    outbox.put(b"frame")
    waiting = asyncio.create_task(outbox.wait_for_room())
    await asyncio.sleep(0)
    outbox.drop()
    async with asyncio.timeout(10):
        await waiting
    assert wire.messages == []
