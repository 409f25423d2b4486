"""Following stored settings: the loops end with their block, and a cancellation meanwhile is not lost."""

from __future__ import annotations

import asyncio

import pytest
import structlog

from passerelle.runtime.common.refresh import HintFollower

pytestmark = pytest.mark.anyio


async def test_cancellation_while_the_loop_ends_is_not_lost() -> None:
    reads, ending = asyncio.Event(), asyncio.Event()

    async def read() -> None:
        reads.set()
        try:
            await asyncio.Event().wait()
        finally:
            ending.set()
            await asyncio.Event().wait()  # such as a connection that is slow to close

    async def use() -> str:
        follower = HintFollower("rules", read, None, structlog.get_logger(), lambda: 0)
        async with follower.repeat():
            await reads.wait()
        return "went on"

    using = asyncio.create_task(use())
    await ending.wait()
    using.cancel()
    with pytest.raises(asyncio.CancelledError):
        await using
