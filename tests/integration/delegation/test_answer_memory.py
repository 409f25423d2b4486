"""An event of a stream counts against the memory budget until it is stored, not until the stream ends."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from passerelle.core.task.status import Status
from passerelle.peers.whole_answer import FREE_BYTES
from passerelle.runtime.memory.budget import Budget, MemoryShortage
from passerelle.runtime.memory.room import DEFAULT_BYTES, MemoryRoom
from tests.support.engine import Server
from tests.support.harness import open_harness
from tests.support.scripted_tasks import Turn
from tests.support.waiting import wait_until

pytestmark = pytest.mark.anyio


class RecordingBudget(Budget):
    """Records the largest amount taken at once."""

    largest = 0

    def take(self, holder: str, amount: int) -> MemoryShortage | None:
        self.largest = max(self.largest, amount)
        return super().take(holder, amount)


async def test_response_stream_releases_the_memory_of_stored_events(
    engine_server: Server, tmp_path: Path, anyio_backend: str
) -> None:
    budget = RecordingBudget(DEFAULT_BYTES)
    room, end = MemoryRoom(budget), asyncio.Event()

    async def send_large_status(turn: Turn) -> None:
        await turn.status("WORKING", "x" * 2 * FREE_BYTES)
        await end.wait()
        await turn.status("COMPLETED")

    async with open_harness(engine_server.url, tmp_path / "blobs", memory=room) as harness:
        accepted = await harness.send("ask which", wait="stream")
        await harness.until(accepted, Status.WAITING_INPUT)
        harness.peer.next(send_large_status)
        await harness.send("that one", task=accepted.facade, wait="stream")
        await wait_until(lambda: budget.largest > 2 * FREE_BYTES, 10, "the large event is counted")
        await harness.until(accepted, Status.RUNNING)
        await wait_until(lambda: not room.held["answer"], 10, "its memory is released")
        assert harness.peer.count("SendStreamingMessage") == 2
        end.set()
        await harness.until(accepted, Status.COMPLETED)
