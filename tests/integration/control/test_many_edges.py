"""A task with more edges than its snapshot holds: none is lost, and none makes the snapshot grow (GR-1, TEV-19)."""

from __future__ import annotations

from typing import Any

import pytest

from passerelle.core import machine
from passerelle.core.batch import Batch, EntityKind, EntityRef, Loaded
from passerelle.core.task.edges import KEPT_EDGES
from passerelle.core.task.status import Status
from passerelle.core.wire.codec import to_bytes
from passerelle.delegation.verification.walk import verify_store
from passerelle.store import keys
from tests.integration.control.stories import is_known
from tests.support.control_client import ControlClient
from tests.support.engine import Server, ask
from tests.support.proof import SNAPSHOT_CAP

pytestmark = pytest.mark.anyio

MANY = 257


async def load(control: ControlClient, task_id: str) -> Loaded:
    (loaded,) = await control.harness.store.log.load([EntityRef(EntityKind.TASK, task_id)])
    return loaded


def list_fields(loaded: Loaded) -> list[str]:
    return [name for name in loaded.fields if name.startswith("edge:")]


async def list_children(control: ControlClient, task_id: str) -> list[str]:
    told: Any = await control.do("get_task", taskId=task_id)
    return [edge["target"] for edge in told["relationships"] if edge["kind"] == "child"]


@pytest.mark.requirement("GR-1", "GR-11", "CMD-9", "I4")
async def test_hundreds_of_children_are_all_read_counted_verified_and_stopped(
    control: ControlClient,
) -> None:
    top = await control.create("sail")
    children = [await control.create(f"part {n}", parentTaskId=top) for n in range(MANY)]
    loaded = await load(control, top)
    assert len(loaded.snapshot) <= SNAPSHOT_CAP
    assert len(list_fields(loaded)) == MANY - KEPT_EDGES
    assert (await verify_store(control.harness.store)).ok
    await control.harness.restart()
    assert await list_children(control, top) == children
    summary: Any = await control.do("get_task_summary", taskId=top)
    assert summary["progress"]["counters"]["childTasks"] == MANY
    graph: Any = await control.do("get_task_graph", taskId=top)
    assert [one["edge"]["target"] for one in graph["edges"]] == children
    working = await control.start("silent", parentTaskId=children[-1])
    await is_known(control, working)
    await control.do("cancel_task", taskId=top, propagation="subtree")
    for one in (top, *children, working):
        await control.until(one, Status.CANCELLED)
    assert (await verify_store(control.harness.store)).ok


@pytest.mark.requirement("GR-2", "GR-10", "TEV-19")
async def test_edge_in_the_list_is_found_changed_and_removed_as_any_other(
    control: ControlClient,
) -> None:
    blocker = await control.create("sail")
    blocked = [await control.create(f"part {n}") for n in range(KEPT_EDGES + 3)]
    for one in blocked:
        await control.do("link_tasks", taskId=blocker, kind="blocks", target=one)
    inner, outer = blocked[4], blocked[-2]
    await control.do("link_tasks", "again", taskId=blocker, kind="blocks", target=outer)
    for one in (outer, inner):
        await control.do("unlink_tasks", taskId=blocker, kind="blocks", target=one)
        assert (await control.record(one)).status is not Status.BLOCKED
    await control.harness.restart()
    edges = {one.target: one.status for one in (await control.record(blocker)).relationships}
    assert edges == dict.fromkeys(blocked, "open") | {inner: "removed", outer: "removed"}
    loaded = await load(control, blocker)
    assert len(list_fields(loaded)) == len(blocked) - KEPT_EDGES
    assert (await verify_store(control.harness.store)).ok


@pytest.mark.requirement("I4")
async def test_task_stored_with_all_edges_in_its_snapshot_gets_a_list_with_its_next_write(
    control: ControlClient, engine_server: Server
) -> None:
    top = await control.create("sail")
    children = [await control.create(f"part {n}", parentTaskId=top) for n in range(KEPT_EDGES + 4)]
    loaded = await load(control, top)
    key = keys.entity(loaded.ref)
    whole = to_bytes(await control.record(top))
    ask(engine_server.url, "HSET", key, "s", whole.decode())
    ask(engine_server.url, "HDEL", key, *list_fields(loaded))
    assert (await verify_store(control.harness.store)).ok
    assert await list_children(control, top) == children
    children.append(await control.create("one more", parentTaskId=top))
    loaded = await load(control, top)
    assert len(list_fields(loaded)) == len(children) - KEPT_EDGES
    assert await list_children(control, top) == children
    assert (await verify_store(control.harness.store)).ok
    gone = list_fields(loaded)[1]
    ask(engine_server.url, "HDEL", key, gone)
    report = await verify_store(control.harness.store)
    assert [(one.kind, one.subject) for one in report.problems if one.kind == "mismatch"] == [
        ("mismatch", top)
    ]
    ask(engine_server.url, "HSET", key, gone, loaded.fields[gone].decode())


@pytest.mark.requirement("GR-1")
async def test_list_costs_no_append_and_a_task_with_few_edges_has_none(
    control: ControlClient,
) -> None:
    appends: list[Batch] = []

    async def note(batch: Batch) -> None:
        appends.append(batch)

    top = await control.create("sail")
    ref = EntityRef(EntityKind.TASK, top)
    control.harness.log.after_append = note
    for number in range(KEPT_EDGES + 2):
        appends.clear()
        await control.create(f"part {number}", parentTaskId=top)
        (write,) = [one for batch in appends for one in batch.entities if one.ref == ref]
        assert len(write.fields) == (number >= KEPT_EDGES), number
    control.harness.log.after_append = None
    assert machine.read_loaded(await load(control, top)) == await control.record(top)
