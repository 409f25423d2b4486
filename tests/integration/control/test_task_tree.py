"""Tasks that belong together: who is whose child, what waits for what, and that a wish to stop reaches all of them."""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import pytest

from passerelle.control import cancellation as cancelling
from passerelle.core import machine
from passerelle.core.batch import Batch
from passerelle.core.errors import StoreUnavailable, UnsupportedOperation
from passerelle.core.events import decode_event
from passerelle.core.facts import RetryPolicy
from passerelle.core.ids import Shard
from passerelle.core.ports.due import DueRow
from passerelle.core.task.record import TaskRecord
from passerelle.core.task.status import Status
from passerelle.delegation.verification.walk import verify_store
from tests.integration.control.stories import is_known
from tests.support.control_client import ControlClient
from tests.support.waiting import wait_until

pytestmark = pytest.mark.anyio


async def unblock(control: ControlClient, ended: str) -> None:
    """What the end of a task owes to those that wait for it."""
    member = f"unblock:{ended}"
    row = DueRow(member, (await control.harness.due(ended))[member])

    async def keep(_shard: object, _row: object) -> bool:
        return False

    await control.harness.parts.tasks.linking.unblock(row, keep)


async def chain_of_three(control: ControlClient) -> list[str]:
    top = await control.create("sail")
    middle = await control.create("find a boat", parentTaskId=top)
    return [top, middle, await control.create("ask for prices", parentTaskId=middle)]


@pytest.mark.requirement("TR-2", "GR-1")
async def test_root_of_every_task_of_a_chain_is_the_first_one(control: ControlClient) -> None:
    top, middle, last = await chain_of_three(control)
    records = [await control.record(one) for one in (top, middle, last)]
    assert [one.root_task_id for one in records] == [top] * 3
    assert [one.parent_task_id for one in records] == [None, top, middle]
    edges = [{(edge.kind, edge.target) for edge in one.relationships} for one in records]
    assert edges == [{("child", middle)}, {("parent", top), ("child", last)}, {("parent", middle)}]


@pytest.mark.requirement("AP-5")
async def test_child_whose_edge_cannot_be_written_does_not_exist(control: ControlClient) -> None:
    top = await control.create("sail")
    before = await control.record(top)
    control.harness.log.refuses_writes = True
    with pytest.raises(StoreUnavailable):
        await control.create("find a boat", parentTaskId=top)
    control.harness.log.refuses_writes = False
    listed = (await control.do("list_tasks"))["tasks"]
    assert isinstance(listed, list)
    assert len(listed) == 1
    assert await control.record(top) == before


@pytest.mark.requirement("AP-5")
async def test_child_and_both_ends_of_its_edge_are_one_append(control: ControlClient) -> None:
    top = await control.create("sail")
    appends: list[list[str]] = []

    async def note(batch: Batch) -> None:
        appends.append([event.type for event in batch.events])

    control.harness.log.after_append = note
    await control.create("find a boat", parentTaskId=top)
    control.harness.log.after_append = None
    (types,) = [one for one in appends if "task.created" in one]
    assert {"task.created", "task.delegated", "task.dependency.updated"} <= set(types)


@pytest.mark.requirement("GR-11", "CMD-9")
async def test_no_grandchild_begins_below_a_task_that_is_to_stop(control: ControlClient) -> None:
    control.harness.peer.on_cancel = "ignored"
    top = await control.start("silent")
    child = await control.create("silent", parentTaskId=top)
    await control.do("start_task", "c", taskId=child)
    grandchild = await control.create("silent", parentTaskId=child)

    async def are_known() -> bool:
        runs = [(await control.record(one)).run for one in (top, child)]
        return all(run is not None and run.remote_task_id for run in runs)

    await wait_until(are_known, 15, "the agent works on both")
    await control.do("cancel_task", taskId=top, propagation="subtree")
    with pytest.raises(UnsupportedOperation):
        await control.do("start_task", "g", taskId=grandchild)
    assert (await control.record(grandchild)).attempts == ()
    control.harness.peer.on_cancel = "canceled"
    for one in (top, child):
        await control.harness.run_due("cancel", one, after_ms=60_000)
        await control.until(one, Status.CANCELLED)
    assert (await control.record(grandchild)).status is Status.CANCELLED


@pytest.mark.requirement("GR-2", "OBJ-12", "TEV-19")
async def test_chain_of_tasks_runs_in_its_order_by_links_alone(control: ControlClient) -> None:
    names = ["first", "second", "third"]
    chain = [await control.create(name) for name in names]
    for earlier, later in itertools.pairwise(chain):
        await control.do("link_tasks", taskId=later, kind="blocked_by", target=earlier)
    for place, task_id in enumerate(chain):
        for later in chain[place + 1 :]:
            assert (await control.record(later)).status is Status.BLOCKED
            with pytest.raises(UnsupportedOperation):
                await control.do("start_task", f"early {place} {later}", taskId=later)
        await control.do("start_task", f"s {place}", taskId=task_id)
        await control.until(task_id, Status.COMPLETED)
        if place + 1 < len(chain):
            await unblock(control, task_id)
    told = [str(message["parts"]) for message in control.harness.peer.messages]
    assert [name in text for name, text in zip(names, told, strict=True)] == [True] * 3


@pytest.mark.requirement("GR-2", "ST-9")
async def test_task_whose_blocker_fails_stays_blocked_and_names_it(control: ControlClient) -> None:
    blocker, blocked = await control.create("fail at it"), await control.create("second")
    await control.do("link_tasks", taskId=blocked, kind="blocked_by", target=blocker)
    await control.do("start_task", "s", taskId=blocker)
    await control.until(blocker, Status.FAILED)
    member = f"unblock:{blocker}"
    row = DueRow(member, (await control.harness.due(blocker))[member])

    async def keep(_shard: object, _row: object) -> bool:
        return False

    for _ in range(2):  # as a row that is found again by another instance
        await control.harness.parts.tasks.linking.unblock(row, keep)
    record = await control.record(blocked)
    assert record.status is Status.BLOCKED
    assert f"task {blocker} ended as failed" in str(record.status_reason)
    assert (await control.types(blocked)).count("task.blocked") == 2, (
        "once for the link, once for the end"
    )
    await control.do("unlink_tasks", taskId=blocked, kind="blocked_by", target=blocker)
    assert (await control.record(blocked)).status is Status.ACCEPTED
    late = await control.create("linked when it had failed")
    await control.do("link_tasks", taskId=blocker, kind="blocks", target=late)
    assert f"task {blocker} ended as failed" in str((await control.record(late)).status_reason)


@pytest.mark.requirement("GR-12", "OBJ-10", "I4")
async def test_edges_are_those_of_the_log_after_a_restart(control: ControlClient) -> None:
    top, middle, last = await chain_of_three(control)
    session_id = (await control.record(top)).session_id
    beside = await control.create("beside it", sessionId=session_id)
    await control.do("link_tasks", taskId=last, kind="blocked_by", target=beside)
    await control.do("start_task", "s", taskId=middle)
    await control.until(middle, Status.COMPLETED)
    await control.harness.restart()
    entries = await control.harness.entries(session_id)
    told = machine.replay([decode_event(one.data, one.frame, one.facade) for one in entries])
    rebuilt = {
        one.task_id: one.relationships for one in told.values() if isinstance(one, TaskRecord)
    }
    assert rebuilt.keys() == {top, middle, last, beside}
    for task_id, edges in rebuilt.items():
        assert (await control.record(task_id)).relationships == edges
    report = await verify_store(control.harness.store, session_id, rebuild=True)
    assert (report.lines, report.rebuilt) == ([], 1)


@dataclass(frozen=True, slots=True)
class Answers:
    """What can be asked of a tree of tasks, read from ids and classes of events alone."""

    root: set[str]
    runs: list[str]
    children: set[str]
    retries: int
    wishes: int


@pytest.mark.requirement("OBJ-11")
async def test_what_became_of_a_tree_is_read_from_ids_and_classes_alone(
    control: ControlClient,
) -> None:
    control.harness.policy = RetryPolicy(attempts=2, backoff_ms=1_000, backoff_max_ms=1_000)
    top = await control.create("fail at it")
    child = await control.create("silent", parentTaskId=top)
    await control.do("start_task", "c", taskId=child)
    await control.do("start_task", "t", taskId=top)
    await control.until(top, Status.RETRYING)
    await control.do("cancel_task", taskId=top, propagation="subtree")
    for one in (top, child):
        await control.until(one, Status.CANCELLED)
    entries = await control.harness.entries((await control.record(top)).session_id)
    events = [decode_event(one.data, one.frame, one.facade) for one in entries]
    kinds = [(event.type, event.fact.scope) for event in events]
    found = Answers(
        root={one.root_task_id for one in [await control.record(top), await control.record(child)]},
        runs=[str(scope.run_id) for kind, scope in kinds if kind == "task.attempt.started"],
        children={str(scope.task_id) for kind, scope in kinds if kind == "task.created"} - {top},
        retries=sum(kind == "task.retrying" for kind, _ in kinds),
        wishes=sum(kind == "task.cancel_requested" for kind, _ in kinds),
    )
    assert found.root == {top}
    assert len(found.runs) == len(set(found.runs)) == 2
    assert (found.children, found.retries, found.wishes) == ({child}, 1, 2)
    ends = [(kind, scope.task_id) for kind, scope in kinds if kind == "task.cancelled"]
    assert sorted(str(task) for _, task in ends) == sorted([top, child])


@pytest.mark.requirement("GR-11")
async def test_no_new_child_is_taken_below_a_task_that_is_to_stop(control: ControlClient) -> None:
    control.harness.peer.on_cancel = "ignored"
    top = await control.start("silent")
    await is_known(control, top)
    child = await control.create("silent", parentTaskId=top)
    await control.do("start_task", "c", taskId=child)
    await is_known(control, child)
    await control.do("cancel_task", taskId=top)
    before = len(control.harness.peer.messages)
    for parent in (top, child):
        with pytest.raises(UnsupportedOperation) as refused:
            await control.create("echo new work", parentTaskId=parent)
        assert refused.value.details["cancelled"] == top
    assert {edge.target for edge in (await control.record(top)).relationships} == {child}
    assert (await control.record(child)).relationships[-1].kind == "parent"
    assert len(control.harness.peer.messages) == before


@pytest.mark.requirement("GR-11")
@pytest.mark.parametrize("depth", [1, 2])
async def test_child_that_was_there_does_not_start_once_a_task_above_is_to_stop(
    control: ControlClient, depth: int
) -> None:
    control.harness.peer.on_cancel = "ignored"
    top = await control.start("silent")
    await is_known(control, top)
    above = top
    for _ in range(depth):
        above = await control.create("echo", parentTaskId=above)
    await control.do("cancel_task", taskId=top)
    with pytest.raises(UnsupportedOperation) as refused:
        await control.do("start_task", "g", taskId=above)
    assert refused.value.details["cancelled"] == top
    assert (await control.record(above)).attempts == ()
    control.harness.peer.on_cancel = "canceled"
    await control.harness.run_due("cancel", top, after_ms=60_000)
    await control.until(top, Status.CANCELLED)
    with pytest.raises(UnsupportedOperation):
        await control.do("start_task", "g again", taskId=above)


@pytest.mark.requirement("GR-11", "CMD-9")
async def test_wish_to_stop_reaches_what_stands_beyond_the_first_few_hundred(
    control: ControlClient,
) -> None:
    top = await control.create("sail")
    children = [await control.create(f"part {n}", parentTaskId=top) for n in range(12)]
    below = [await control.create("a bit", parentTaskId=one) for one in children for _ in range(21)]
    last = await control.start("silent", parentTaskId=below[-1])
    await is_known(control, last)
    assert len(children) + len(below) > cancelling.MOST_AT_ONCE
    await control.do("cancel_task", taskId=top, propagation="subtree")
    for one in (top, *children, *below, last):
        await control.until(one, Status.CANCELLED)
    assert sum(one.method == "CancelTask" for one in control.harness.peer.requests) == 1


@pytest.mark.requirement("GR-11", "CMD-9")
async def test_rest_of_a_subtree_is_stopped_by_a_due_row_after_a_death(
    control: ControlClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cancelling, "MOST_AT_ONCE", 2)
    control.harness.peer.on_cancel = "ignored"
    top = await control.start("silent")
    await is_known(control, top)
    children = [await control.create(f"part {n}", parentTaskId=top) for n in range(5)]
    stored: list[str] = []

    async def die(batch: Batch) -> None:
        stored.extend(event.type for event in batch.events)
        if stored.count("task.cancel_requested") >= 2:
            control.harness.log.refuses_writes = True

    control.harness.log.after_append = die
    with pytest.raises(StoreUnavailable):
        await control.do("cancel_task", taskId=top, propagation="subtree")
    control.harness.log.after_append = None
    control.harness.log.refuses_writes = False
    await control.harness.restart()
    ended = [(await control.record(one)).status is Status.CANCELLED for one in children]
    assert 0 < ended.count(True) < len(children)

    async def rows() -> int:
        return sum(row.startswith("subtree:") for row in await control.harness.due(top))

    drops: list[str] = []

    async def drop(_shard: object, row: DueRow) -> bool:
        drops.append(row.member)
        return True

    assert await rows() == 1
    member = f"subtree:{top}"
    while not drops:
        row = DueRow(member, (await control.harness.due(top))[member])
        await control.harness.parts.tasks.cancelling.on_due(Shard(0), row, drop)
    assert {(await control.record(one)).status for one in children} == {Status.CANCELLED}
