"""The outbox: order is kept, messages are bounded, and whoever has much to send waits."""

from __future__ import annotations

import asyncio

import pytest

from passerelle.channels.transport import Outbox

pytestmark = pytest.mark.anyio


async def test_frames_leave_in_order_and_together() -> None:
    outbox = Outbox(1_000)
    for frame in (b"1", b"2", b"3"):
        outbox.put(frame)
    assert await outbox.take() == b"1\n2\n3"
    outbox.finish()
    outbox.put(b"late")
    assert await outbox.take() is None


async def test_a_message_is_bounded_and_a_large_frame_goes_alone() -> None:
    outbox = Outbox(1_000_000)
    for frame in (b"a" * 40_000, b"b" * 40_000, b"c" * 90_000, b"d"):
        outbox.put(frame)
    outbox.finish()
    sizes = [len(message) for message in iter([await outbox.take() for _ in range(4)]) if message]
    assert sizes == [40_000, 40_000, 90_000, 1]


async def test_room_is_waited_for_until_the_writer_has_taken_enough() -> None:
    outbox = Outbox(100)
    await outbox.wait_for_room()
    outbox.put(b"x" * 100)
    waiting = asyncio.create_task(outbox.wait_for_room())
    await asyncio.sleep(0)
    assert not waiting.done()
    await outbox.take()
    async with asyncio.timeout(1):
        await waiting
    assert outbox.size_bytes == 0
