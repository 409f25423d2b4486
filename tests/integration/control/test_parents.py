"""A task with a parent: what it brought is the parent's, as far as there is one."""

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
from tests.support.control_client import ControlClient
from tests.support.waiting import wait_until

pytestmark = pytest.mark.anyio


async def word_for_parent(control: ControlClient, task_id: str) -> object:
    model = await control.do("get_delivery", taskId=task_id)
    return cast("JsonObject", model["consumers"])["parent"]


@pytest.mark.requirement("PO-6", "SNAP-19")
async def test_result_is_delivered_to_the_parent_when_the_child_has_ended(
    control: ControlClient,
) -> None:
    parent = await control.create("sail around the world")
    child = await control.create("find a boat", parentTaskId=parent)
    assert await word_for_parent(control, child) == "pending"
    assert await word_for_parent(control, parent) == "not_applicable"
    await control.do("start_task", "s", taskId=child)
    await control.until(child, Status.COMPLETED)
    assert await word_for_parent(control, child) == "delivered"


@pytest.mark.requirement("PO-6")
async def test_a_child_whose_agent_answers_with_a_message_completes(control: ControlClient) -> None:
    """Its stream names no task: the answer that was kept back for its parent was taken for one that was lost."""
    parent = await control.create("sail around the world")
    child = await control.start("message a boat is found", parentTaskId=parent)
    await control.until(child, Status.COMPLETED)
    assert await word_for_parent(control, child) == "delivered"
    assert "model.failed" not in await control.types(child)


async def make_child(control: ControlClient) -> tuple[str, str]:
    parent = await control.create("sail around the world")
    return parent, await control.create("find a boat", parentTaskId=parent)


@pytest.mark.requirement("ST-17", "I5", "AP-4", "PO-6")
async def test_child_is_not_completed_until_its_parent_has_been_told(
    control: ControlClient,
) -> None:
    parent, child = await make_child(control)
    refused: list[str] = []

    async def refuse(batch: Batch) -> None:
        if any(one.ref.id == parent for one in batch.entities):
            refused.append(parent)
            raise StoreUnavailable("the parent cannot be written", "no")

    control.harness.log.before_append = refuse
    await control.do("start_task", "s", taskId=child)
    await wait_until(lambda: len(refused) > 2, 15, "the parent could not be told, again and again")
    record = await control.record(child)
    assert record.attempts[-1].native_status == "TASK_STATE_COMPLETED"
    assert record.status is not Status.COMPLETED
    assert "task.completed" not in await control.types(child)
    with pytest.raises((UnsupportedOperation, StoreUnavailable)):
        await control.do("complete_task", taskId=child)
    control.harness.log.before_append = None
    record = await control.until(child, Status.COMPLETED)
    assert record.delivery["parent"] == "delivered"
    (edge,) = (await control.record(parent)).relationships
    assert (edge.kind, edge.target, edge.status) == ("child", child, "satisfied")
    sequences = {event.type: event.sequence for event in await control.events(child)}
    (told,) = [one for one in await control.events(parent) if one.type == "task.dependency.updated"]
    assert told.sequence < sequences["task.completed"]


@pytest.mark.requirement("PO-6", "I5")
async def test_parent_is_told_once_though_the_instance_dies_after_it(
    control: ControlClient,
) -> None:
    parent, child = await make_child(control)
    log = control.harness.log

    async def die(batch: Batch) -> None:
        if any(one.ref.id == parent for one in batch.entities):
            log.refuses_writes = True

    log.after_append = die
    await control.do("start_task", "s", taskId=child)
    await wait_until(lambda: log.refuses_writes, 15, "the parent has been told")
    await control.harness.restart()
    log.refuses_writes, log.after_append = False, None
    await control.harness.parts.dispatch.adopt(EntityRef(EntityKind.TASK, child))
    await control.until(child, Status.COMPLETED)
    assert (await control.types(parent)).count("task.dependency.updated") == 1


@pytest.mark.requirement("PO-6")
async def test_child_that_fails_hands_nothing_over(control: ControlClient) -> None:
    parent = await control.create("sail around the world")
    child = await control.create("fail at it", parentTaskId=parent)
    await control.do("start_task", "s", taskId=child)
    await control.until(child, Status.FAILED)
    (edge,) = (await control.record(parent)).relationships
    assert edge.status == "open"


@pytest.mark.requirement("PO-6")
async def test_child_of_a_parent_that_was_archived_ends_and_says_that_it_is_missing(
    control: ControlClient,
) -> None:
    parent = await control.create("fail at it")
    child = await control.create("find a boat", parentTaskId=parent)
    await control.do("start_task", "p", taskId=parent)
    failed = await control.until(parent, Status.FAILED)
    ref = EntityRef(EntityKind.TASK, parent)

    def archive(decision: Decision) -> AppendOptions:
        now = decision.state(ref)
        assert isinstance(now, TaskRecord)
        decision.add(decide(now, ArchiveTask(f"archive/{now.session_id}")))
        return AppendOptions()

    await control.harness.parts.writes.decide(failed.session_id, [ref], archive)
    assert await word_for_parent(control, child) == "parent_missing"
    await control.do("start_task", "c", taskId=child)
    record = await control.until(child, Status.COMPLETED)
    assert record.delivery["parent"] == "parent_missing"
    assert await word_for_parent(control, child) == "parent_missing"
    (edge,) = (await control.record(parent)).relationships
    assert edge.status == "open", "nothing was handed over"


@pytest.mark.requirement("PO-6")
async def test_child_whose_parent_is_lost_while_it_runs_ends_and_says_that_it_is_missing(
    control: ControlClient,
) -> None:
    parent, child = await make_child(control)
    ref = EntityRef(EntityKind.TASK, parent)
    control.hold_card()
    starting = asyncio.create_task(control.do("start_task", "s", taskId=child))
    await control.until(child, Status.PREPARING)
    assert await word_for_parent(control, child) == "pending"
    nodes, kept = control.harness.store.nodes, keys.entity(ref)
    record = await nodes.query(ref.shard, pack("DUMP", kept), as_bytes)
    await nodes.update(ref.shard, pack("DEL", kept))
    control.harness.peer.card_open.set()
    await starting
    ended = await control.until(child, Status.COMPLETED)
    assert ended.delivery["parent"] == "parent_missing"
    assert await word_for_parent(control, child) == "parent_missing"
    # What is proved of the session afterwards is what was written meanwhile.
    await nodes.update(ref.shard, pack("RESTORE", kept, 0, record or b""))
