"""Edges between tasks, lists of tasks, and sessions, by command, over stored state."""

from __future__ import annotations

from typing import cast

import pytest

from passerelle.core.batch import Batch, EntityKind, EntityRef
from passerelle.core.errors import InvalidInput, NotFound, StoreUnavailable, VersionMismatch
from passerelle.core.ports.due import DueRow
from passerelle.core.session.machine import SessionRecord
from passerelle.core.task.status import Status
from passerelle.core.wire.json import Json, JsonObject
from tests.support.control_client import ControlClient
from tests.support.harness import BOB
from tests.support.waiting import wait_until

pytestmark = pytest.mark.anyio


@pytest.mark.requirement("CMD-13", "GR-10", "ST-9", "TEV-8")
async def test_a_blocked_task_continues_when_the_edge_is_removed(control: ControlClient) -> None:
    blocker, blocked = await control.create("first"), await control.create("second")
    await control.do(
        "link_tasks", "l", taskId=blocker, kind="blocks", target=blocked, reason="order"
    )
    await control.do(
        "link_tasks", "l", taskId=blocker, kind="blocks", target=blocked, reason="order"
    )
    record = await control.record(blocked)
    (edge,) = record.relationships
    assert (record.status, edge.target, edge.status) == (Status.BLOCKED, blocker, "open")
    assert (await control.types(blocked)).count("task.blocked") == 1
    with pytest.raises(InvalidInput):
        await control.do("link_tasks", taskId=blocker, kind="blocked_by", target=blocked)
    await control.do("unlink_tasks", taskId=blocker, kind="blocks", target=blocked, reason="not so")
    after = await control.record(blocked)
    (gone,) = after.relationships
    assert (after.status, gone.status, gone.reason) == (Status.ACCEPTED, "removed", "not so")
    assert gone.created_at <= gone.updated_at
    with pytest.raises(NotFound):
        await control.do("unlink_tasks", taskId=blocker, kind="child", target=blocked)


@pytest.mark.requirement("ST-9", "TEV-19", "I9")
async def test_a_blocked_task_continues_when_its_blocker_completes(control: ControlClient) -> None:
    blocker, blocked = await control.create("first"), await control.create("second")
    await control.do("link_tasks", taskId=blocked, kind="blocked_by", target=blocker)
    assert (await control.record(blocked)).status is Status.BLOCKED
    await control.do("start_task", "s", taskId=blocker)
    await control.until(blocker, Status.COMPLETED)
    member = f"unblock:{blocker}"
    row = DueRow(member, (await control.harness.due(blocker))[member])

    async def keep(_shard: object, _row: object) -> bool:
        return False

    await control.harness.parts.tasks.linking.unblock(row, keep)
    (edge,) = (await control.record(blocked)).relationships
    assert ((await control.record(blocked)).status, edge.status) == (Status.ACCEPTED, "satisfied")
    assert member not in await control.harness.due(blocker)
    # An instance that finds the row late, with nothing left to do, drops it.
    dropped: list[str] = []

    async def drop(_shard: object, late: DueRow) -> bool:
        dropped.append(late.member)
        return True

    await control.harness.parts.tasks.linking.unblock(row, drop)
    assert dropped == [member]


@pytest.mark.requirement("CMD-13", "GR-10", "I9")
async def test_edge_interrupted_between_its_ends_is_completed_by_its_due_row(
    control: ControlClient,
) -> None:
    blocker, blocked = await control.create("first"), await control.create("second")
    log = control.harness.log

    async def break_off(_batch: Batch) -> None:
        log.refuses_writes = True

    log.after_append = break_off
    with pytest.raises(StoreUnavailable):
        await control.do("link_tasks", taskId=blocker, kind="blocks", target=blocked)
    log.refuses_writes, log.after_append = False, None
    assert len((await control.record(blocker)).relationships) == 1
    assert (await control.record(blocked)).relationships == ()
    member = f"edge:{blocker}:blocks:{blocked}"
    row = DueRow(member, (await control.harness.due(blocker))[member])
    dropped: list[DueRow] = []

    async def drop(_shard: object, row: DueRow) -> bool:
        dropped.append(row)
        return True

    for _ in range(2):
        await control.harness.parts.tasks.linking.finish(row, drop)
        record = await control.record(blocked)
        assert (record.status, record.relationships[0].target) == (Status.BLOCKED, blocker)
        assert (await control.types(blocked)).count("task.dependency.updated") == 1
    assert dropped == [row, row]
    await control.do("unlink_tasks", taskId=blocker, kind="blocks", target=blocked)
    await control.harness.parts.tasks.linking.finish(row, drop)
    assert (await control.record(blocked)).status is Status.ACCEPTED


@pytest.mark.requirement("CMD-12", "TR-10")
async def test_a_list_is_filtered_and_read_in_pages(control: ControlClient) -> None:
    names = [f"boat {number}" for number in range(5)]
    made = [await control.create(name) for name in names]
    await control.do("cancel_task", taskId=made[0])
    seen: list[str] = []
    token = ""
    while True:
        given: JsonObject = {"pageSize": 2, **({"pageToken": token} if token else {})}
        page = await control.do("list_tasks", **given)
        tasks = cast("list[JsonObject]", page["tasks"])
        assert len(tasks) <= 2
        seen += [str(one["taskId"]) for one in tasks]
        token = str(page["nextPageToken"])
        if not token:
            break
    assert sorted(seen) == sorted(made)

    async def find(**filters: str | list[str]) -> list[str]:
        found = await control.do("list_tasks", **cast("JsonObject", filters))
        return [str(one["taskId"]) for one in cast("list[JsonObject]", found["tasks"])]

    assert await find(status=["cancelled"]) == [made[0]]
    assert await find(text="BOAT 3") == [made[3]]
    assert await find(agent="other") == []
    session = (await control.record(made[2])).session_id
    assert await find(sessionId=session) == [made[2]]
    with pytest.raises(InvalidInput):
        await find(since="yesterday")
    with pytest.raises(NotFound):
        await control.do("list_tasks", None, BOB, sessionId=session)


@pytest.mark.requirement("EVC-1", "CMD-30")
async def test_a_session_is_opened_named_and_listed(control: ControlClient) -> None:
    first = await control.do("open_session", "o", title="harbour", labels={"team": "sea"})
    again = await control.do("open_session", "o", title="harbour", labels={"team": "sea"})
    session = cast("JsonObject", first["session"])
    session_id = str(session["sessionId"])
    assert (cast("JsonObject", again["session"])["sessionId"], again["repeated"]) == (
        session_id,
        True,
    )
    await control.do("update_session", sessionId=session_id, version=first["version"], title="port")
    with pytest.raises(VersionMismatch):
        await control.do(
            "update_session", sessionId=session_id, version=first["version"], title="x"
        )
    task_id = await control.create(sessionId=session_id)
    assert (await control.record(task_id)).session_id == session_id
    entries = await control.harness.entries(session_id)
    types = [entry.type for entry in entries if entry.type.startswith("session.")]
    assert types == ["session.created", "session.updated"]
    page = await control.do("list_sessions")
    (listed,) = cast("list[JsonObject]", page["sessions"])
    assert (listed["sessionId"], listed["title"], listed["labels"]) == (
        session_id,
        "port",
        {"team": "sea"},
    )
    assert (await control.do("list_sessions", None, BOB))["sessions"] == []
    ref = EntityRef(EntityKind.SESSION, session_id)
    assert isinstance((await control.harness.parts.writes.load_one(ref)).record, SessionRecord)


@pytest.mark.requirement("CMD-2")
async def test_an_interrupt_reaches_the_agent_and_is_a_no_op_in_an_idle_session(
    control: ControlClient,
) -> None:
    task_id = await control.start("silent")

    async def is_known() -> bool:
        run = (await control.record(task_id)).run
        return run is not None and run.remote_task_id is not None

    await wait_until(is_known, 15, "the agent has the task")
    session_id = (await control.record(task_id)).session_id
    stopped = await control.do("interrupt_turn", sessionId=session_id, reason="stop")
    assert (stopped["outcome"], stopped["tasks"]) == ("accepted", [task_id])
    await control.until(task_id, Status.CANCELLED)
    assert control.harness.peer.count("CancelTask") == 1
    before = len(await control.harness.entries(session_id))
    assert (await control.do("interrupt_turn", sessionId=session_id))["outcome"] == "no_op"
    assert len(await control.harness.entries(session_id)) == before


@pytest.mark.requirement("CMD-2")
@pytest.mark.parametrize("member", ["threadId", "turnId"])
async def test_interrupt_of_one_thread_or_turn_leaves_the_others_of_its_session(
    control: ControlClient, member: str
) -> None:
    first = await control.start("silent")
    session_id = (await control.record(first)).session_id
    second = await control.start("silent", sessionId=session_id)

    async def are_known() -> bool:
        runs = [(await control.record(one)).run for one in (first, second)]
        return all(run is not None and run.remote_task_id is not None for run in runs)

    await wait_until(are_known, 15, "the agent has both tasks")
    record = await control.record(first)
    named = record.thread_id if member == "threadId" else record.turn_id
    given: dict[str, Json] = {"sessionId": session_id, member: named, "reason": "stop"}
    stopped = await control.do("interrupt_turn", **given)
    assert (stopped["outcome"], stopped["tasks"]) == ("accepted", [first])
    await control.until(first, Status.CANCELLED)
    assert (await control.record(second)).ended_at is None
    assert control.harness.peer.count("CancelTask") == 1


@pytest.mark.requirement("CMD-3")
async def test_a_resumed_thread_is_attached_to_its_run(control: ControlClient) -> None:
    control.harness.peer.hold()
    task_id = await control.start("chunks 2")
    control.harness.peer.release(1)

    async def is_known() -> bool:
        run = (await control.record(task_id)).run
        return run is not None and run.remote_task_id is not None

    await wait_until(is_known, 15, "the agent has the task")
    await control.harness.restart()
    thread_id = str((await control.record(task_id)).thread_id)
    resumed = await control.do("resume_thread", threadId=thread_id)
    (one,) = cast("list[JsonObject]", resumed["tasks"])
    assert (one["taskId"], one["outcome"]) == (task_id, "attached")
    control.harness.peer.release_all()
    await control.until(task_id, Status.COMPLETED)
    assert len(control.harness.peer.messages) == 1


@pytest.mark.requirement("CMD-13", "GR-1", "GR-10")
@pytest.mark.parametrize("from_above", [True, False])
async def test_created_child_is_unlinked_and_linked_again_from_either_end(
    control: ControlClient, *, from_above: bool
) -> None:
    top = await control.create("top")
    child = await control.create("part", parentTaskId=top)
    ends: dict[str, Json] = {"taskId": top, "kind": "child", "target": child}
    if not from_above:
        ends = {"taskId": child, "kind": "parent", "target": top}
    for method, status in (("unlink_tasks", "removed"), ("link_tasks", "open")):
        await control.do(method, **ends)
        for task_id, kind, target in ((top, "child", child), (child, "parent", top)):
            edges = (await control.record(task_id)).relationships
            assert [(one.kind, one.target, one.status) for one in edges] == [(kind, target, status)]
