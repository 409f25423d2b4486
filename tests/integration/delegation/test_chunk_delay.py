"""Pieces of an artifact that come close behind each other are stored together; nothing else waits for them."""

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
"""Longer than any test: whatever is stored before was not waited for."""


class Pieces:
    """An agent that says a piece when the test wants it: its number, or the end."""

    def __init__(self) -> None:
        self.wanted: asyncio.Queue[int | None] = asyncio.Queue()

    async def talk(self, turn: Turn) -> None:
        await turn.open()
        await turn.status("WORKING")
        while (number := await self.wanted.get()) is not None:
            await turn.artifact(f"{number} ", append=number > 1, last=False)
        await turn.status("COMPLETED")

    def want(self, *numbers: int | None) -> None:
        """So many more."""
        for number in numbers:
            self.wanted.put_nowait(number)


@pytest.fixture
def stored(harness: Harness) -> list[int]:
    """How many pieces each append has that has any."""
    counts: list[int] = []

    async def count(batch: Batch) -> None:
        pieces = sum(b'"artifactUpdate"' in event.body for event in batch.events)
        if pieces:
            counts.append(pieces)

    harness.log.before_append = count
    return counts


async def begin(harness: Harness) -> tuple[Pieces, TurnAccepted]:
    """A stream of which the first piece is stored."""
    pieces = Pieces()
    harness.peer.next(pieces.talk)
    accepted = await harness.send("go", wait="stream")
    pieces.want(1)
    await wait_until(lambda: read_text(harness, accepted) == "1 ", 10, "the first piece is stored")
    return pieces, accepted


def read_text(harness: Harness, accepted: TurnAccepted) -> str:
    """What is stored of the artifact."""
    driver = harness.parts.dispatch.find(accepted.task_id)
    artifacts = objects_at((driver.run.content if driver else None) or {}, "artifacts")
    return "".join(text_at(part, "text") for one in artifacts for part in objects_at(one, "parts"))


async def test_pieces_close_behind_each_other_are_stored_together_and_the_end_waits_for_nothing(
    harness: Harness, stored: list[int]
) -> None:
    harness.limits = LONG
    pieces, accepted = await begin(harness)
    pieces.want(2, 3, 4, None)
    await harness.until(accepted, Status.COMPLETED)
    assert stored == [1, 3]
    frames = await harness.watch(accepted)
    assert len([frame for frame in frames if "artifactUpdate" in frame]) == 4, "each is told"


async def test_as_many_pieces_as_go_into_one_append_wait_for_no_more(
    harness: Harness, stored: list[int]
) -> None:
    harness.limits = LONG
    pieces, accepted = await begin(harness)
    pieces.want(*range(2, 18))
    await wait_until(lambda: "17 " in read_text(harness, accepted), 10, "sixteen more are stored")
    assert stored == [1, 16]
    pieces.want(None)
    await harness.until(accepted, Status.COMPLETED)


async def test_a_cancel_is_not_delayed_by_pieces_that_wait(
    harness: Harness, stored: list[int]
) -> None:
    harness.limits = LONG
    pieces, accepted = await begin(harness)
    pieces.want(2)
    await harness.cancel(accepted)
    await harness.until(accepted, Status.CANCELLED)
    assert harness.peer.count("CancelTask") == 1
    assert stored[0] == 1


@pytest.mark.parametrize("delay_ms", [0, 40])
async def test_a_piece_that_comes_alone_is_stored_by_itself(
    harness: Harness, stored: list[int], delay_ms: int
) -> None:
    harness.limits = OutputLimits(chunk_delay_ms=delay_ms)
    pieces, accepted = await begin(harness)
    pieces.want(2)
    await wait_until(lambda: read_text(harness, accepted) == "1 2 ", 10, "the second is stored")
    pieces.want(3)
    await wait_until(lambda: read_text(harness, accepted) == "1 2 3 ", 10, "the third is stored")
    assert stored == [1, 1, 1]
    pieces.want(None)
    await harness.until(accepted, Status.COMPLETED)
