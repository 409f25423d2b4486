"""Chunks of an artifact that arrive shortly after each other are stored together; nothing else waits for them."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from passerelle.a2a_mapping.members import objects_at, text_at
from passerelle.core.task.status import Status
from passerelle.delegation.runs.volume import OutputLimits
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from passerelle.core.batch import Batch
    from passerelle.core.commands import TurnAccepted
    from tests.support.harness import Harness
    from tests.support.scripted_tasks import Turn

pytestmark = pytest.mark.anyio

LONG = OutputLimits(chunk_delay_ms=600_000)
"""Longer than any test: whatever is stored earlier did not wait for it."""


class Chunks:
    """An agent that sends a chunk when the test asks for it: by its number, or None for the end."""

    def __init__(self) -> None:
        self.requested: asyncio.Queue[int | None] = asyncio.Queue()

    async def talk(self, turn: Turn) -> None:
        await turn.open()
        await turn.status("WORKING")
        while (number := await self.requested.get()) is not None:
            await turn.artifact(f"{number} ", append=number > 1, last=False)
        await turn.status("COMPLETED")

    def send(self, *numbers: int | None) -> None:
        """Has the agent send these chunks."""
        for number in numbers:
            self.requested.put_nowait(number)


@pytest.fixture
def stored(harness: Harness) -> list[int]:
    """Chunks per append, of appends that contain any."""
    counts: list[int] = []

    async def count(batch: Batch) -> None:
        chunks = sum(b'"artifactUpdate"' in event.body for event in batch.events)
        if chunks:
            counts.append(chunks)

    harness.log.before_append = count
    return counts


async def begin(harness: Harness) -> tuple[Chunks, TurnAccepted]:
    """Begins a stream and waits until its first chunk is stored."""
    chunks = Chunks()
    harness.peer.next(chunks.talk)
    accepted = await harness.send("go", wait="stream")
    chunks.send(1)
    await wait_until(lambda: read_text(harness, accepted) == "1 ", 10, "the first chunk is stored")
    return chunks, accepted


def read_text(harness: Harness, accepted: TurnAccepted) -> str:
    """The stored text of the artifact."""
    driver = harness.parts.dispatch.find(accepted.task_id)
    artifacts = objects_at((driver.run.content if driver else None) or {}, "artifacts")
    return "".join(text_at(part, "text") for one in artifacts for part in objects_at(one, "parts"))


async def test_close_chunks_are_stored_together_and_the_end_does_not_wait(
    harness: Harness, stored: list[int]
) -> None:
    harness.limits = LONG
    chunks, accepted = await begin(harness)
    chunks.send(2, 3, 4, None)
    await harness.until(accepted, Status.COMPLETED)
    assert stored == [1, 3]
    frames = await harness.watch(accepted)
    assert len([frame for frame in frames if "artifactUpdate" in frame]) == 4, "each is sent"


async def test_full_batch_of_chunks_is_stored_without_waiting(
    harness: Harness, stored: list[int]
) -> None:
    harness.limits = LONG
    chunks, accepted = await begin(harness)
    chunks.send(*range(2, 18))
    await wait_until(lambda: "17 " in read_text(harness, accepted), 10, "sixteen more are stored")
    assert stored == [1, 16]
    chunks.send(None)
    await harness.until(accepted, Status.COMPLETED)


async def test_cancel_is_not_delayed_by_waiting_chunks(harness: Harness, stored: list[int]) -> None:
    harness.limits = LONG
    chunks, accepted = await begin(harness)
    chunks.send(2)
    await harness.cancel(accepted)
    await harness.until(accepted, Status.CANCELLED)
    assert harness.peer.count("CancelTask") == 1
    assert stored[0] == 1


@pytest.mark.parametrize("delay_ms", [0, 40])
async def test_single_chunk_is_stored_by_itself(
    harness: Harness, stored: list[int], delay_ms: int
) -> None:
    harness.limits = OutputLimits(chunk_delay_ms=delay_ms)
    chunks, accepted = await begin(harness)
    chunks.send(2)
    await wait_until(lambda: read_text(harness, accepted) == "1 2 ", 10, "the second is stored")
    chunks.send(3)
    await wait_until(lambda: read_text(harness, accepted) == "1 2 3 ", 10, "the third is stored")
    assert stored == [1, 1, 1]
    chunks.send(None)
    await harness.until(accepted, Status.COMPLETED)
