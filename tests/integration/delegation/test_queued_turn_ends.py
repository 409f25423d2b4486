"""Turns that end while they are queued: the context is idle afterwards, whatever has ended them."""

from __future__ import annotations

import pytest

from passerelle.core.batch import EntityKind, EntityRef
from passerelle.core.commands import CancelTask, TurnAccepted
from passerelle.core.errors import UnsupportedOperation
from passerelle.core.session.thread import ThreadRecord
from passerelle.core.task.status import Status
from tests.integration.delegation.test_turn_queue import begin, follow, list_changes, list_queue
from tests.support.harness import ADA, Harness
from tests.support.waiting import wait_until

pytestmark = pytest.mark.anyio


async def count_waiting(harness: Harness, first: TurnAccepted) -> int:
    """The number of queued turns in the record of the context."""
    ref = EntityRef(EntityKind.THREAD, first.thread_id)
    record = (await harness.parts.writes.load_one(ref)).record
    assert isinstance(record, ThreadRecord)
    return record.waiting_turns


@pytest.mark.parametrize("policy", ["reject", "queue"])
async def test_context_is_idle_after_its_queued_turn_was_cancelled(
    harness: Harness, policy: str
) -> None:
    first = await begin(harness)
    turn = await follow(harness, first, "never")
    await harness.service.execute(ADA, CancelTask(turn.task_id), None)
    await harness.until(turn, Status.CANCELLED)
    with pytest.raises(UnsupportedOperation, match="in progress"):
        await follow(harness, first, "too early", "reject")
    harness.peer.release_all()
    await harness.until(first, Status.COMPLETED)
    further = await follow(harness, first, "further", "reject" if policy == "reject" else "queue")
    assert further.position is None, "it does not wait"
    await harness.until(further, Status.COMPLETED)
    assert harness.peer.texts == ["first", "further"]


async def test_due_row_of_a_cancelled_turn_records_the_shorter_queue(harness: Harness) -> None:
    first = await begin(harness)
    turns = [await follow(harness, first, f"turn {number}") for number in range(2)]
    await harness.service.execute(ADA, CancelTask(turns[0].task_id), None)
    await harness.until(turns[0], Status.CANCELLED)
    assert await list_queue(harness, first) == [turns[1].turn_id]
    for _ in range(2):
        await harness.run_due("queued", turns[0].task_id, after_ms=0)
    assert await count_waiting(harness, first) == 1
    left = (turns[1].turn_id,)
    assert (await list_changes(harness, first))[2:] == [("removed", left)]
    harness.peer.release_all()
    await harness.until(turns[1], Status.COMPLETED)
    assert await count_waiting(harness, first) == 0


async def test_turn_of_a_removed_agent_leaves_the_queue_when_it_fails(harness: Harness) -> None:
    first = await begin(harness)
    turns = [await follow(harness, first, f"turn {number}") for number in range(2)]
    harness.registry.replace([])
    harness.peer.release_all()
    for turn in turns:
        record = await harness.until(turn, Status.FAILED)
        assert record.last_error is not None
        assert record.last_error.code == "peer_gone"
    assert await count_waiting(harness, first) == 0
    changes = (await list_changes(harness, first))[2:]
    assert changes == [("removed", (turns[1].turn_id,)), ("removed", ())]

    async def is_empty() -> bool:
        return await harness.store.queues.count([f"thread:{first.thread_id}"]) == [0]

    await wait_until(is_empty, 10, "the queue is empty")
