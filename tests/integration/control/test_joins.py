"""What a run leaves in goals, checklists, turns, job items, approvals and spawn edges is joined by ids (OBJ-9)."""

from __future__ import annotations

from typing import Any

import pytest

from passerelle.core.ids import Shard, shard_of
from passerelle.core.ports.due import DueRow
from passerelle.core.task.status import Status
from passerelle.core.wire.json import Json
from tests.support.control_client import ControlClient
from tests.support.waiting import wait_until

pytestmark = pytest.mark.anyio


async def _keep(_shard: Shard, _row: DueRow) -> bool:
    return False


@pytest.mark.requirement("OBJ-9")
async def test_six_tables_of_a_run_join_by_ids_without_an_orphan(control: ControlClient) -> None:
    answer: Any = await control.do(
        "submit_job", title="boats", agents=["echo"], inputs=["ask which boat"]
    )
    job = str(answer["job"]["jobId"])
    control.harness.remember(job)

    async def read_items() -> list[Any]:
        member = f"job:{job}"
        token = (await control.harness.due(job)).get(member)
        if token is not None:
            items = control.harness.parts.schedules.items
            await items.on_due(
                shard_of(job), DueRow(member, token), control.harness.clock.now_ms(), _keep
            )
        table: Any = await control.do("get_job_results", jobId=job)
        return [row for row in table["items"] if row.get("taskStatus") == "waiting_input"]

    items = await wait_until(read_items, 20, "the item asks")
    parent = str(items[0]["taskId"])
    plan: list[Json] = [{"title": "look", "done": True}, {"title": "buy"}]
    await control.do("append_task_progress", taskId=parent, checklist=plan)
    made: Any = await control.do(
        "spawn_subagent", "spawn", agent="other", text="echo prices", parentTaskId=parent
    )
    child, subagent = str(made["taskId"]), str(made["subagent"]["subagentId"])
    await control.until(child, Status.COMPLETED)

    # Each table as it is read, and nothing but its ids.
    session = (await control.record(parent)).session_id
    goals: dict[str, Any] = {
        task: await control.do("get_task", taskId=task) for task in (parent, child)
    }
    objects: dict[str, Any] = {
        task: await control.do("get_objects", taskId=task) for task in (parent, child)
    }
    (asked,) = goals[parent]["openActions"]
    action: Any = await control.do("get_action", actionId=asked)
    snapshot: Any = await control.do("get_session_tasks", sessionId=session)
    subagents: Any = await control.do("list_subagents", sessionId=session)
    turns = {
        (entry.fact.scope.turn_id, entry.fact.scope.task_id)
        for task in (parent, child)
        for entry in await control.events(task)
        if entry.type == "turn.submitted"
    }
    tasks = set(goals)
    threads: dict[str, Any] = {}
    for goal in goals.values():
        assert goal["objective"]
        threads[goal["threadId"]] = await control.do("get_thread", threadId=goal["threadId"])
    assert {line["taskId"] for thread in threads.values() for line in thread["tasks"]} == tasks
    assert {item["taskId"] for item in items} == {parent}
    assert [objects[parent]["jobs"], objects[parent]["todos"]] == [[job], plan]
    assert objects[child]["jobs"] == []
    assert (action["actionId"], action["taskId"], action["state"]) == (asked, parent, "pending")
    assert {task for _, task in turns} == tasks
    assert action["turnId"] in {turn for turn, _ in turns}
    edges = [
        (one["taskId"], one["edge"]["kind"], one["edge"]["target"])
        for one in snapshot["graph"]["edges"]
    ]
    known = {one["subagentId"]: one for one in subagents["subagents"]}
    spawned = {(task, target) for task, kind, target in edges if kind == "spawned_subagent"}
    assert (parent, subagent) in spawned
    assert (child, subagent) in spawned
    assert {task for task, _ in spawned} == tasks
    assert {target for _, target in spawned} == set(known)
    assert (parent, "parent", job) in edges
    assert (parent, "child", child) in edges
    above = known[subagent]["parent"]
    assert (above["turnId"], above["taskId"]) in turns
    assert above["threadId"] in threads
    runs = {run["runId"] for found in objects.values() for run in found["runs"]}
    assert {run for one in known.values() for run in one["runs"]} == runs
