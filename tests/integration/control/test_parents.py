"""A task with a parent: its result is delivered to the parent, as long as the parent exists."""

from __future__ import annotations

import asyncio
from typing import cast

import pytest

from passerelle.core.batch import Batch, EntityKind, EntityRef
from passerelle.core.decision import Decision
from passerelle.core.errors import StoreUnavailable, UnsupportedOperation
from passerelle.core.task.commands import ArchiveTask
from passerelle.core.task.machine import decide
from passerelle.core.task.record import TaskRecord
from passerelle.core.task.status import Status
from passerelle.core.wire.json import JsonObject
from passerelle.runtime.records.writes import AppendOptions
from passerelle.store import keys
from passerelle.store.connection import pack
from passerelle.store.replies import as_bytes
from tests.support.desk import Desk
from tests.support.waiting import wait_until

pytestmark = pytest.mark.anyio


async def read_parent_delivery(desk: Desk, task_id: str) -> object:
    model = await desk.do("get_delivery", taskId=task_id)
    return cast("JsonObject", model["consumers"])["parent"]


@pytest.mark.requirement("PO-6", "SNAP-19")
async def test_result_is_delivered_to_the_parent_when_the_child_ends(desk: Desk) -> None:
    parent = await desk.create("sail around the world")
    child = await desk.create("find a boat", parentTaskId=parent)
    assert await read_parent_delivery(desk, child) == "pending"
    assert await read_parent_delivery(desk, parent) == "not_applicable"
    await desk.do("start_task", "s", taskId=child)
    await desk.until(child, Status.COMPLETED)
    assert await read_parent_delivery(desk, child) == "delivered"


@pytest.mark.requirement("PO-6")
async def test_a_child_whose_agent_answers_with_a_message_completes(desk: Desk) -> None:
    """Its stream names no task. The response held back for the parent was once treated as a lost one."""
    parent = await desk.create("sail around the world")
    child = await desk.start("message a boat is found", parentTaskId=parent)
    await desk.until(child, Status.COMPLETED)
    assert await read_parent_delivery(desk, child) == "delivered"
    assert "model.failed" not in await desk.types(child)


async def make_child(desk: Desk) -> tuple[str, str]:
    parent = await desk.create("sail around the world")
    return parent, await desk.create("find a boat", parentTaskId=parent)


@pytest.mark.requirement("ST-17", "I5", "AP-4", "PO-6")
async def test_child_completes_only_after_its_parent_is_notified(desk: Desk) -> None:
    parent, child = await make_child(desk)
    refused: list[str] = []

    async def refuse(batch: Batch) -> None:
        if any(one.ref.id == parent for one in batch.entities):
            refused.append(parent)
            raise StoreUnavailable("the parent cannot be written", "no")

    desk.house.log.before_append = refuse
    await desk.do("start_task", "s", taskId=child)
    await wait_until(lambda: len(refused) > 2, 15, "the write to the parent failed repeatedly")
    record = await desk.record(child)
    assert record.attempts[-1].native_status == "TASK_STATE_COMPLETED"
    assert record.status is not Status.COMPLETED
    assert "task.completed" not in await desk.types(child)
    with pytest.raises((UnsupportedOperation, StoreUnavailable)):
        await desk.do("complete_task", taskId=child)
    desk.house.log.before_append = None
    record = await desk.until(child, Status.COMPLETED)
    assert record.delivery["parent"] == "delivered"
    (edge,) = (await desk.record(parent)).relationships
    assert (edge.kind, edge.target, edge.status) == ("child", child, "satisfied")
    sequences = {event.type: event.sequence for event in await desk.events(child)}
    (updated,) = [one for one in await desk.events(parent) if one.type == "task.dependency.updated"]
    assert updated.sequence < sequences["task.completed"]


@pytest.mark.requirement("PO-6", "I5")
async def test_parent_is_notified_once_across_a_crash_right_after_it(desk: Desk) -> None:
    parent, child = await make_child(desk)
    log = desk.house.log

    async def die(batch: Batch) -> None:
        if any(one.ref.id == parent for one in batch.entities):
            log.refuses_writes = True

    log.after_append = die
    await desk.do("start_task", "s", taskId=child)
    await wait_until(lambda: log.refuses_writes, 15, "the parent is notified")
    await desk.house.restart()
    log.refuses_writes, log.after_append = False, None
    await desk.house.parts.dispatch.adopt(EntityRef(EntityKind.TASK, child))
    await desk.until(child, Status.COMPLETED)
    assert (await desk.types(parent)).count("task.dependency.updated") == 1


@pytest.mark.requirement("PO-6")
async def test_child_that_fails_delivers_nothing(desk: Desk) -> None:
    parent = await desk.create("sail around the world")
    child = await desk.create("fail at it", parentTaskId=parent)
    await desk.do("start_task", "s", taskId=child)
    await desk.until(child, Status.FAILED)
    (edge,) = (await desk.record(parent)).relationships
    assert edge.status == "open"


@pytest.mark.requirement("PO-6")
async def test_child_of_an_archived_parent_ends_and_reports_the_parent_as_missing(
    desk: Desk,
) -> None:
    parent = await desk.create("fail at it")
    child = await desk.create("find a boat", parentTaskId=parent)
    await desk.do("start_task", "p", taskId=parent)
    failed = await desk.until(parent, Status.FAILED)
    ref = EntityRef(EntityKind.TASK, parent)

    def archive(decision: Decision) -> AppendOptions:
        now = decision.state(ref)
        assert isinstance(now, TaskRecord)
        decision.add(decide(now, ArchiveTask(f"archive/{now.session_id}")))
        return AppendOptions()

    await desk.house.parts.writes.decide(failed.session_id, [ref], archive)
    assert await read_parent_delivery(desk, child) == "parent_missing"
    await desk.do("start_task", "c", taskId=child)
    record = await desk.until(child, Status.COMPLETED)
    assert record.delivery["parent"] == "parent_missing"
    assert await read_parent_delivery(desk, child) == "parent_missing"
    (edge,) = (await desk.record(parent)).relationships
    assert edge.status == "open", "nothing was delivered"


@pytest.mark.requirement("PO-6")
async def test_child_whose_parent_is_lost_meanwhile_ends_and_reports_it_as_missing(
    desk: Desk,
) -> None:
    parent, child = await make_child(desk)
    ref = EntityRef(EntityKind.TASK, parent)
    desk.hold_card()
    starting = asyncio.create_task(desk.do("start_task", "s", taskId=child))
    await desk.until(child, Status.PREPARING)
    assert await read_parent_delivery(desk, child) == "pending"
    nodes, kept = desk.house.store.nodes, keys.entity(ref)
    record = await nodes.query(ref.shard, pack("DUMP", kept), as_bytes)
    await nodes.update(ref.shard, pack("DEL", kept))
    desk.house.peer.card_open.set()
    await starting
    ended = await desk.until(child, Status.COMPLETED)
    assert ended.delivery["parent"] == "parent_missing"
    assert await read_parent_delivery(desk, child) == "parent_missing"
    # The fixture's final check needs the parent's record.
    await nodes.update(ref.shard, pack("RESTORE", kept, 0, record or b""))
