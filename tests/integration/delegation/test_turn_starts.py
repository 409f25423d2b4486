"""Dequeued turns of a context: each starts after the previous one has ended, also across a store outage."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from dataclasses import replace
from pathlib import Path

import pytest

from passerelle.core.batch import Batch
from passerelle.core.commands import TurnAccepted
from passerelle.core.errors import StoreUnavailable, WriteConflict
from passerelle.core.oversight_requests import PauseAgent, ResumeAgent
from passerelle.core.principal import OWNER
from passerelle.core.task.status import Status
from passerelle.runtime.limits.limit import Bounds
from tests.integration.delegation.test_turn_queue import begin, follow, list_queue
from tests.support.engine import Server
from tests.support.harness import Harness, open_harness
from tests.support.waiting import wait_until

pytestmark = pytest.mark.anyio


@pytest.fixture
async def narrow(
    engine_server: Server, tmp_path: Path, anyio_backend: str
) -> AsyncGenerator[Harness]:
    """A harness whose agent accepts two messages at a time."""
    async with open_harness(
        engine_server.url,
        tmp_path / "blobs",
        adjust=lambda one: replace(one, bounds=Bounds(concurrency=2)),
    ) as opened:
        yield opened


def refuse_starts(harness: Harness, task: str, times: int) -> list[str]:
    """Fails the first ``times`` appends that start the task; the list gets one entry for each."""
    refused: list[str] = []

    async def refuse(batch: Batch) -> None:
        if len(refused) < times and any(one.enters and one.task == task for one in batch.runs):
            refused.append(task)
            raise StoreUnavailable("the test took it away", "no")

    harness.log.before_append = refuse
    return refused


async def test_slot_of_a_turn_that_could_not_start_is_released(narrow: Harness) -> None:
    first = await begin(narrow)
    turn = await follow(narrow, first, "later")
    refused = refuse_starts(narrow, turn.task_id, 1000)
    narrow.peer.release_all()
    await narrow.until(first, Status.COMPLETED)
    await wait_until(lambda: refused, 10, "its start was refused by the store")
    narrow.peer.hold()
    others = [await narrow.send(text, wait="none") for text in ("one", "two")]
    await wait_until(
        lambda: {"one", "two"} <= set(narrow.peer.texts), 10, "the agent works at two messages"
    )
    narrow.log.before_append = None
    narrow.peer.release_all()
    for other in others:
        await narrow.until(other, Status.COMPLETED)


async def list_starts(harness: Harness, first: TurnAccepted) -> list[tuple[str, str | None]]:
    """The starts and ends of the turns of a context, in order."""
    return [
        (one.type, one.fact.scope.turn_id)
        for one in await harness.events(first)
        if one.type in {"turn.started", "turn.completed"}
    ]


def expect_in_order(*turns: TurnAccepted) -> list[tuple[str, str | None]]:
    return [(kind, one.turn_id) for one in turns for kind in ("turn.started", "turn.completed")]


async def test_two_instances_that_pull_one_queue_start_one_turn_at_a_time(harness: Harness) -> None:
    first = await begin(harness)
    turns = [await follow(harness, first, f"turn {number}") for number in range(2)]
    tasks = {one.task_id for one in turns}
    here = harness.parts.queues
    await harness.start()
    held: list[str] = []
    answered: list[str] = []
    go_on = asyncio.Event()

    async def hold(batch: Batch) -> None:
        begun = [one.task for one in batch.runs if one.enters and one.task in tasks]
        if begun and len(held) < 2:
            held.extend(begun)
            await go_on.wait()

    async def count(batch: Batch) -> None:
        answered.extend(one.task for one in batch.runs if one.enters)

    harness.log.before_append, harness.log.after_append = hold, count
    harness.peer.release_all()
    await harness.until(first, Status.COMPLETED)
    await wait_until(lambda: len(held) == 1, 10, "one instance is about to start a turn")
    for queues in (here, harness.parts.queues):
        queues.pull(f"thread:{first.thread_id}")
    await wait_until(lambda: len(held) == 2, 10, "the other instance is about to start it as well")
    harness.peer.hold()
    go_on.set()
    await wait_until(lambda: len(answered) >= 2, 10, "both have tried")
    await wait_until(lambda: "turn 0" in harness.peer.texts, 10, "the agent works at the first one")
    harness.peer.release_all()
    for turn in turns:
        await harness.until(turn, Status.COMPLETED)
    assert await list_starts(harness, first) == expect_in_order(first, *turns)
    assert harness.peer.texts == ["first", "turn 0", "turn 1"]
    assert harness.peer.most_sends == 1


async def test_turn_whose_start_fails_is_not_overtaken(harness: Harness) -> None:
    first = await begin(harness)
    turns = [await follow(harness, first, f"turn {number}") for number in range(2)]
    refused = refuse_starts(harness, turns[0].task_id, 1)
    harness.peer.release_all()
    for turn in turns:
        await harness.until(turn, Status.COMPLETED)
    assert len(refused) == 1
    assert await list_starts(harness, first) == expect_in_order(first, *turns)
    assert await list_queue(harness, first) == []


async def test_turn_that_waits_for_its_agent_is_not_overtaken(harness: Harness) -> None:
    """Another writer changes the task when it is to wait for its agent: the loop continues."""
    first = await begin(harness)
    turns = [await follow(harness, first, f"turn {number}") for number in range(2)]
    await harness.service.execute(OWNER, PauseAgent("echo"), None)
    refused: list[str] = []

    async def refuse(batch: Batch) -> None:
        is_moved = turns[0].task_id in {one.ref.id for one in batch.entities}
        if is_moved and not refused:
            refused.append(turns[0].task_id)
            raise WriteConflict("the test wrote first")

    harness.log.before_append = refuse
    harness.peer.release_all()

    async def has_moved() -> bool:
        queued = (await harness.record(turns[0])).queued
        return queued is not None and queued.cause == "paused"

    await wait_until(has_moved, 10, "it waits for its agent")
    assert await list_queue(harness, first) == [turns[1].turn_id]
    await harness.service.execute(OWNER, ResumeAgent("echo"), None)
    for turn in turns:
        await harness.until(turn, Status.COMPLETED)
    assert len(refused) == 1
    assert await list_starts(harness, first) == expect_in_order(first, *turns)
