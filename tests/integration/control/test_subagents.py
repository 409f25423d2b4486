"""Contexts of agents as children: their ids, parents, edges, states and events, read from what is stored anyway."""

from __future__ import annotations

from typing import Any

import pytest

from passerelle.core import machine
from passerelle.core.errors import InvalidInput, NotFound
from passerelle.core.events import decode_event
from passerelle.core.ids import Shard, shard_of
from passerelle.core.ports.due import DueRow
from passerelle.core.read_models.subagents import find_subagents
from passerelle.core.session.thread import ThreadRecord
from passerelle.core.task.record import TaskRecord
from passerelle.core.task.status import Status
from passerelle.core.wire.codec import to_wire
from passerelle.core.wire.json import JsonObject
from passerelle.delegation.verification.walk import verify_store
from tests.support.control_client import ControlClient
from tests.support.harness import BOB
from tests.support.waiting import wait_until

pytestmark = pytest.mark.anyio


async def _keep(_shard: Shard, _row: DueRow) -> bool:
    return False


async def list_all(control: ControlClient, **scope: str) -> list[Any]:
    answer: Any = await control.do("list_subagents", None, **scope)
    return list(answer["subagents"])


async def tell(control: ControlClient, subagent: str) -> list[Any]:
    answer: Any = await control.do("get_subagent_events", subagentId=subagent)
    return list(answer["events"])


async def draw_edges(control: ControlClient, task_id: str) -> list[Any]:
    answer: Any = await control.do("get_task_graph", taskId=task_id)
    return [one["edge"] for one in answer["edges"] if one["edge"]["kind"] == "spawned_subagent"]


@pytest.mark.requirement("ID-10", "GR-5", "CMD-24")
@pytest.mark.parametrize("wait", ["unary", "stream"])
async def test_a_delegation_opens_a_subagent_and_a_second_one_reuses_it(
    control: ControlClient,
    wait: Any,  # noqa: ANN401  a mode
) -> None:
    first = await control.harness.send("echo one", wait=wait)
    await control.harness.until(first, Status.COMPLETED)
    (one,) = await list_all(control, taskId=first.task_id)
    assert one["parent"] == {
        "sessionId": first.session_id,
        "threadId": first.thread_id,
        "turnId": first.turn_id,
        "taskId": first.task_id,
    }
    assert (one["peer"], one["state"], one["contextId"]) == ("echo", "idle", first.context_id)
    second = await control.harness.send("echo two", wait=wait, context_id=first.context_id)
    await control.harness.until(second, Status.COMPLETED)
    edges = [await draw_edges(control, task) for task in (first.task_id, second.task_id)]
    assert [[edge["target"] for edge in found] for found in edges] == [[one["subagentId"]]] * 2
    assert {edge["status"] for found in edges for edge in found} == {"open"}
    (again,) = await list_all(control, threadId=first.thread_id)
    assert again["parent"] == one["parent"]
    assert again["tasks"] == [first.task_id, second.task_id]
    assert again["subagentId"] == one["subagentId"]
    assert await list_all(control, sessionId=first.session_id) == [again]
    assert await control.do("get_subagent", subagentId=one["subagentId"]) == again
    sent = [request.params for request in control.harness.peer.requests if "Send" in request.method]
    contexts: set[Any] = {params["message"]["contextId"] for params in sent}  # type: ignore[index, call-overload]
    assert contexts == {again["remoteContextId"]}


@pytest.mark.requirement("PRS-6", "ID-10", "SNAP-12")
async def test_two_agents_in_a_thread_are_two_subagents_and_get_no_messages_of_each_other(
    control: ControlClient,
) -> None:
    first = await control.harness.send("echo for the first alone")
    await control.harness.until(first, Status.COMPLETED)
    second = await control.harness.send(
        "message for the second", agent="other", context_id=first.context_id
    )
    await control.harness.until(second, Status.COMPLETED)
    one, two = await list_all(control, threadId=first.thread_id)
    assert [one["peer"], two["peer"]] == ["echo", "other"]
    assert [one["recoverability"], two["recoverability"]] == ["recoverable", "message_only"]
    assert one["remoteContextId"] != two["remoteContextId"]
    assert (one["parent"]["turnId"], two["parent"]["turnId"]) == (first.turn_id, second.turn_id)
    for name, own, foreign in (("echo", "first", "second"), ("other", "second", "first")):
        said = [str(request.params) for request in control.harness.peers[name].requests]
        assert any(f"for the {own}" in text for text in said)
        assert not any(f"for the {foreign}" in text for text in said)


@pytest.mark.requirement("EVC-16", "ID-10")
async def test_what_a_subagent_lives_through_is_told_from_the_facts_of_its_runs(
    control: ControlClient,
) -> None:
    asked = await control.harness.send("ask which", wait="stream")
    await control.harness.until(asked, Status.WAITING_INPUT)
    (one,) = await list_all(control, taskId=asked.task_id)
    assert one["state"] == "waiting"
    answered = await control.harness.send("the second", task=asked.facade)
    await control.harness.until(asked, Status.COMPLETED)
    failed = await control.harness.send("fail badly", context_id=asked.context_id)
    await control.harness.until(failed, Status.FAILED)
    stored = len(await control.harness.entries(asked.session_id))
    events = await tell(control, one["subagentId"])
    kinds = [event["type"].removeprefix("subagent.") for event in events]
    assert [kind for kind in kinds if kind != "status"] == [
        *("spawned", "input", "completed"),
        *("input", "failed"),
    ]
    assert kinds.index("status") == 1
    parent = {"sessionId": asked.session_id, "threadId": asked.thread_id, "taskId": asked.task_id}
    for event in events:
        assert {**event, **parent, "turnId": asked.turn_id} == event
        assert event["subagentId"] == one["subagentId"]
    said = {event["payload"]["messageId"] for event in events if event["type"] == "subagent.input"}
    submitted = [
        event for event in await control.harness.events(asked) if event.type == "turn.submitted"
    ]
    assert said == {event.fact.payload.message_id for event in submitted[1:]}  # type: ignore[union-attr]
    assert [event["refs"]["input"]["sequence"] for event in events if "refs" in event] == [
        event.sequence for event in submitted[1:]
    ]
    assert answered.task_id == asked.task_id
    statuses = [
        event["payload"]["status"] for event in events if event["type"] == "subagent.status"
    ]
    assert "waiting" in statuses
    assert events[0]["payload"]["nativeId"] == one["remoteContextId"]
    # They are the same whenever they are read, page by page as well, and reading them stores nothing.
    assert await tell(control, one["subagentId"]) == events
    found, token = list[Any](), ""
    while True:
        page: Any = await control.do(
            "get_subagent_events", subagentId=one["subagentId"], pageSize=2, pageToken=token
        )
        found += page["events"]
        token = page["nextPageToken"]
        if not token:
            break
    assert found == events
    assert len({event["eventId"] for event in events}) == len(events)
    assert len(await control.harness.entries(asked.session_id)) == stored


@pytest.mark.requirement("EVC-16", "SNAP-12")
async def test_an_agent_that_answers_with_a_message_is_a_subagent_that_completes(
    control: ControlClient,
) -> None:
    sent = await control.harness.send("message hello")
    await control.harness.until(sent, Status.COMPLETED)
    (one,) = await list_all(control, taskId=sent.task_id)
    assert (one["recoverability"], one["state"], one["status"]) == (
        "message_only",
        "idle",
        "completed",
    )
    kinds = [event["type"] for event in await tell(control, one["subagentId"])]
    assert (kinds[0], kinds[-1]) == ("subagent.spawned", "subagent.completed")


async def test_what_is_no_subagent_of_the_caller_is_not_found(control: ControlClient) -> None:
    sent = await control.harness.send("echo mine")
    await control.harness.until(sent, Status.COMPLETED)
    (one,) = await list_all(control, taskId=sent.task_id)
    mine = str(one["subagentId"])
    for method in ("get_subagent", "get_subagent_events"):
        with pytest.raises(NotFound):
            await control.do(method, None, BOB, subagentId=mine)
        for wrong in (
            *(
                mine.replace("echo", "other"),
                mine.replace("~1~", "~2~"),
                mine.replace("~1~", "~0~"),
            ),
            *("sub_", "", sent.task_id, f"sub_9{mine[5:]}", mine + "x" * 200),
        ):
            with pytest.raises((NotFound, InvalidInput)):
                await control.do(method, subagentId=wrong)
    for scope in ({"taskId": sent.task_id}, {"threadId": sent.thread_id}):
        with pytest.raises(NotFound):
            await control.do("list_subagents", None, BOB, **scope)
    both: JsonObject = {"taskId": sent.task_id, "threadId": sent.thread_id}
    for wrong_scope in ({}, both):
        with pytest.raises(InvalidInput, match="taskId"):
            await control.do("list_subagents", None, **wrong_scope)


@pytest.mark.requirement("TR-5", "AP-5", "SNAP-12")
async def test_the_task_of_a_job_item_has_an_edge_to_its_job(control: ControlClient) -> None:
    answer: Any = await control.do(
        "submit_job", title="two", agents=["echo"], inputs=["echo one", "message two"]
    )
    job = str(answer["job"]["jobId"])
    control.harness.remember(job)

    async def look() -> list[Any]:
        member = f"job:{job}"
        token = (await control.harness.due(job)).get(member)
        if token is not None:
            row, now_ms = DueRow(member, token), control.harness.clock.now_ms()
            items = control.harness.parts.schedules.items
            await items.on_due(shard_of(job), row, now_ms, _keep)
        table: Any = await control.do("get_job_results", jobId=job)
        rows = list(table["items"])
        return rows if all(row["state"] == "completed" for row in rows) else []

    rows = await wait_until(look, 30, "the job is over")
    for item, row in enumerate(rows, 1):
        record = await control.record(row["taskId"])
        assert record.family == "job_item"
        graph: Any = await control.do("get_task_graph", taskId=row["taskId"])
        parents = [one["edge"] for one in graph["edges"] if one["edge"]["kind"] == "parent"]
        assert [(edge["target"], edge["reason"]) for edge in parents] == [
            (job, f"item {item} of the job")
        ]
        summary: Any = await control.do("get_subagents", taskId=row["taskId"])
        (line,) = summary["jobs"]
        assert (line["jobId"], line["item"], line["counts"]["completed"]) == (job, item, 2)
        assert "jobs" not in summary["marks"]
    # The edge is a fact of its own: a message that merely looks like that of an item makes none.
    forged = control.harness.message("echo forged")
    forged["messageId"] = f"job-{job}-1-1"
    sent = await control.harness.send("", message=forged)
    await control.harness.until(sent, Status.COMPLETED)
    graph = await control.do("get_task_graph", taskId=sent.task_id)
    assert {one["edge"]["kind"] for one in graph["edges"]} == {
        "assigned_thread",
        "spawned_subagent",
        "produced_artifact",
    }
    listed: Any = await control.do("list_tasks", family=["job_item"])
    assert [one["taskId"] for one in listed["tasks"]] == [
        rows[0]["taskId"]
    ]  # a Message is in no list
    others: Any = await control.do("list_tasks", family=["delegation", "message"])
    assert [one["taskId"] for one in others["tasks"]] == [sent.task_id]


@pytest.mark.requirement("OBJ-10", "GR-12")
async def test_subagents_are_the_same_out_of_the_facts_alone(control: ControlClient) -> None:
    sent = await control.harness.send("echo one")
    await control.harness.until(sent, Status.COMPLETED)
    before = await list_all(control, sessionId=sent.session_id)
    entries = await control.harness.entries(sent.session_id)
    events = [decode_event(entry.data, entry.frame, entry.facade) for entry in entries]
    records = machine.replay(events).values()
    threads = {one.thread_id: one for one in records if isinstance(one, ThreadRecord)}
    tasks = [one for one in records if isinstance(one, TaskRecord)]
    assert [to_wire(one) for one in find_subagents(tasks, threads)] == before
    await control.harness.restart()
    assert await list_all(control, sessionId=sent.session_id) == before
    report = await verify_store(control.harness.store, rebuild=True)
    assert report.lines == []
