"""A message that interrupts its context, whose gateway dies meanwhile: a due row completes the interrupt."""

from __future__ import annotations

from dataclasses import replace

import pytest

from passerelle.core.task.status import Status
from tests.integration.delegation.test_turn_queue import begin, follow
from tests.support.harness import Harness
from tests.support.waiting import wait_until

pytestmark = pytest.mark.anyio


class DeadError(Exception):
    """The process dies right after an append."""


@pytest.mark.requirement("I9", "CMD-15")
@pytest.mark.parametrize("point", [1, 2, 3])
async def test_interrupt_is_completed_by_a_due_row_after_its_gateway_died(
    harness: Harness, point: int
) -> None:
    """It dies after the append of the message, of its place in the queue, or of the cancel request."""
    working = await harness.send("silent", wait="none")
    await wait_until(lambda: harness.peer.texts == ["silent"], 10, "the agent works at it")
    waits = await follow(harness, working, "waits")
    count = 0

    async def die(_batch: object) -> None:
        nonlocal count
        count += 1
        if count >= point:
            raise DeadError

    harness.log.after_append = die
    with pytest.raises(DeadError):
        await follow(harness, working, "urgent", "interrupt")
    harness.log.after_append = None
    await harness.restart()
    await harness.adopt(working)
    submitted = [one for one in await harness.events(working) if one.type == "turn.submitted"]
    urgent = replace(waits, task_id=str(submitted[-1].fact.scope.task_id))
    assert (await harness.record(urgent)).status is Status.QUEUED
    await harness.run_due("queued", urgent.task_id, after_ms=0)
    if point == 3:
        await harness.run_due("cancel", working.task_id, after_ms=0)
    await harness.until(working, Status.CANCELLED)
    for turn in (urgent, waits):
        await harness.until(turn, Status.COMPLETED)
    assert harness.peer.texts == ["silent", "urgent", "waits"]
    requests = [one for one in await harness.types(working) if one == "task.cancel_requested"]
    assert len(requests) == 1


async def test_completed_interrupt_does_not_stop_later_turns(
    harness: Harness,
) -> None:
    working = await begin(harness)
    first = await follow(harness, working, "first of two", "interrupt")
    second = await follow(harness, working, "second of two", "interrupt")
    harness.peer.release_all()
    await harness.until(working, Status.CANCELLED)
    harness.peer.hold()
    await wait_until(lambda: harness.peer.texts[-1] == "second of two", 10, "it begins")
    await harness.run_due("queued", first.task_id, after_ms=0)
    assert (await harness.record(second)).cancel_requested_by is None
    harness.peer.release_all()
    for turn in (second, first):
        await harness.until(turn, Status.COMPLETED)
