"""Messages that interrupt: a stored message is sent, whatever happens to the task that it interrupts."""

from __future__ import annotations

from dataclasses import replace

import pytest

from passerelle.core.batch import Batch
from passerelle.core.commands import SubmitTurn
from passerelle.core.errors import Forbidden
from passerelle.core.task.record import TaskRecord
from passerelle.core.task.status import Status
from passerelle.delegation.runs.agent_queues import AgentQueues
from tests.integration.delegation.test_turn_queue import begin, follow, list_queue
from tests.support.harness import ADA, Harness
from tests.support.waiting import wait_until

pytestmark = pytest.mark.anyio


async def test_message_that_is_already_sent_interrupts_nothing(
    harness: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = await begin(harness)
    enter = AgentQueues.enter

    async def enter_and_begin(queues: AgentQueues, record: TaskRecord) -> None:
        await enter(queues, record)
        harness.peer.release_all()

        async def has_begun() -> bool:
            seen = await harness.parts.dispatch.read_task(record.task_id)
            return seen is not None and seen.queued is None

        await wait_until(has_begun, 10, "it is taken from the queue")

    monkeypatch.setattr(AgentQueues, "enter", enter_and_begin)
    urgent = await follow(harness, first, "urgent", "interrupt")
    assert urgent.position == 1
    await harness.until(urgent, Status.COMPLETED)
    assert (await harness.record(first)).status is Status.COMPLETED
    assert harness.peer.texts == ["first", "urgent"]


async def test_task_that_ends_before_its_interrupt_is_no_error(
    harness: Harness,
) -> None:
    first = await begin(harness)

    async def is_known() -> bool:
        return (await harness.record(first)).run is not None

    await wait_until(is_known, 10, "it has a run")

    async def end_before(batch: Batch) -> None:
        if first.task_id in {one.ref.id for one in batch.entities}:
            harness.log.before_append = None
            harness.peer.release_all()
            await harness.until(first, Status.COMPLETED)

    harness.log.before_append = end_before
    urgent = await follow(harness, first, "urgent", "interrupt")
    assert urgent.position == 1
    await harness.until(urgent, Status.COMPLETED)
    assert (await harness.record(first)).status is Status.COMPLETED
    assert harness.peer.texts == ["first", "urgent"]


async def test_caller_without_the_right_to_cancel_cannot_interrupt(harness: Harness) -> None:
    first = await begin(harness)
    sender = replace(ADA, operations={"echo": frozenset({"SendMessage"})})
    command = SubmitTurn(
        "echo",
        {**harness.message("urgent"), "contextId": first.context_id},
        "http",
        "none",
        context_id=first.context_id,
        when_busy="interrupt",
    )
    with pytest.raises(Forbidden):
        await harness.service.execute(sender, command, None)
    assert await list_queue(harness, first) == []
    waits = await harness.service.execute(sender, replace(command, when_busy="queue"), None)
    harness.peer.release_all()
    assert waits is not None
    await wait_until(lambda: harness.peer.texts == ["first", "urgent"], 10, "it is sent in turn")
