"""Turns of a context whose turn has come: each starts after the one before, also where the store is away meanwhile."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from dataclasses import replace
from pathlib import Path

import pytest

from passerelle.core.batch import Batch
from passerelle.core.errors import StoreUnavailable
from passerelle.core.task.status import Status
from passerelle.runtime.limits.bounds import Bounds
from tests.integration.delegation.test_turn_queue import begin, follow
from tests.support.engine import Server
from tests.support.house import House, open_house
from tests.support.waiting import wait_until

pytestmark = pytest.mark.anyio


@pytest.fixture
async def narrow(
    engine_server: Server, tmp_path: Path, anyio_backend: str
) -> AsyncGenerator[House]:
    """A house whose agent takes two messages at a time."""
    async with open_house(
        engine_server.url,
        tmp_path / "blobs",
        adjust=lambda one: replace(one, bounds=Bounds(concurrency=2)),
    ) as opened:
        yield opened


def refuse_starts(house: House, task: str, times: int) -> list[str]:
    """The store is away when a task is to start, so many times; the list has one more entry for each."""
    refused: list[str] = []

    async def refuse(batch: Batch) -> None:
        if len(refused) < times and any(one.enters and one.task == task for one in batch.runs):
            refused.append(task)
            raise StoreUnavailable("the test took it away", "no")

    house.log.before_append = refuse
    return refused


async def test_place_of_a_turn_that_could_not_start_is_not_lost(narrow: House) -> None:
    first = await begin(narrow)
    turn = await follow(narrow, first, "later")
    refused = refuse_starts(narrow, turn.task_id, 1000)
    narrow.peer.release_all()
    await narrow.until(first, Status.COMPLETED)
    await wait_until(lambda: refused, 10, "the store was away for its start")
    narrow.peer.hold()
    others = [await narrow.send(text, wait="none") for text in ("one", "two")]
    await wait_until(
        lambda: {"one", "two"} <= set(narrow.peer.texts), 10, "the agent works at two messages"
    )
    narrow.log.before_append = None
    narrow.peer.release_all()
    for other in others:
        await narrow.until(other, Status.COMPLETED)
