"""The session, thread and turn ids of a task: created by a message, by a job, or before any turn."""

from __future__ import annotations

from typing import Any, Final

import pytest

from passerelle.core.task.status import Status
from tests.integration.control.job_bench import Bench
from tests.support.desk import Desk
from tests.support.waiting import wait_until

pytestmark = pytest.mark.anyio

IDS: Final = ("sessionId", "threadId", "turnId")
Found = dict[str, Any]


async def read_line(desk: Desk, task_id: str, session_id: str) -> Found:
    """Returns the task's line in the list of its session, which may lag behind."""

    async def find() -> Found | None:
        listed: Any = await desk.do("get_session_tasks", sessionId=session_id)
        lines = [dict(one) for one in listed["tasks"] if one["taskId"] == task_id]
        return lines[0] if lines else None

    found = await wait_until(find, 10, "the session lists its task")
    assert found is not None
    return found


async def read_ids(desk: Desk, task_id: str) -> Found:
    """Returns the three ids; the record and the line agree, and a missing id is None."""
    record: Any = await desk.do("get_task", taskId=task_id)
    line = await read_line(desk, task_id, record["sessionId"])
    ids = {name: record.get(name) for name in IDS}
    assert {name: line.get(name) for name in IDS} == ids
    assert ("turnId" in line["marks"]) is (ids["turnId"] is None)
    return ids


async def list_turns(desk: Desk, task_id: str) -> list[tuple[str, str | None]]:
    """Returns the type and the turn of each event of a task, in order."""
    return [(event.type, event.fact.scope.turn_id) for event in await desk.events(task_id)]


@pytest.mark.requirement("TR-3")
async def test_task_of_a_message_has_the_ids_of_its_turn(desk: Desk) -> None:
    first: Any = await desk.do("submit_turn", "k-1", agent="echo", text="ask which?")
    assert await read_ids(desk, first["taskId"]) == {name: first[name] for name in IDS}
    await desk.until(first["taskId"], Status.WAITING_INPUT)
    sibling: Any = await desk.do(
        "submit_turn", "k-2", agent="echo", text="echo two", contextId=first["contextId"]
    )
    assert await read_ids(desk, sibling["taskId"]) == {
        **{name: first[name] for name in IDS},
        "turnId": sibling["turnId"],
    }
    again: Any = await desk.do(
        "submit_turn", "k-3", agent="echo", text="blue", taskId=first["taskId"]
    )
    await desk.until(first["taskId"], Status.COMPLETED)
    assert (await read_ids(desk, first["taskId"]))["turnId"] == again["turnId"]
    turns = [turn for type_, turn in await list_turns(desk, first["taskId"]) if "created" in type_]
    assert turns == [first["turnId"]], "what has happened keeps the turn in which it has"


@pytest.mark.requirement("TR-3")
async def test_task_of_a_job_item_has_the_ids_of_its_own_turn(desk: Desk) -> None:
    bench = Bench(desk)
    job = await bench.make(["echo one", "echo two"])
    await bench.finish(job)
    rows = await bench.table(job)
    ids = [await read_ids(desk, row["taskId"]) for row in rows]
    assert None not in [one[name] for one in ids for name in IDS]
    assert len({one["turnId"] for one in ids}) == len(rows)
    for row, one in zip(rows, ids, strict=True):
        submitted = [
            turn
            for type_, turn in await list_turns(desk, row["taskId"])
            if type_ == "turn.submitted"
        ]
        assert submitted == [one["turnId"]]


@pytest.mark.requirement("TR-3")
@pytest.mark.parametrize("draft", [True, False])
async def test_created_task_has_no_turn_until_it_starts(desk: Desk, *, draft: bool) -> None:
    desk.house.peer.hold()
    task_id = await desk.create("echo it", draft=draft)
    made = await read_ids(desk, task_id)
    assert made["turnId"] is None
    assert made["sessionId"]
    assert made["threadId"]
    assert {turn for _, turn in await list_turns(desk, task_id)} == {None}
    await desk.do("update_task", taskId=task_id, title="It")
    assert await read_ids(desk, task_id) == made
    await desk.do("start_task", "s", taskId=task_id)
    started = await read_ids(desk, task_id)
    assert started["turnId"] is not None
    assert {**started, "turnId": None} == made, "it stays where it was made"
    desk.house.peer.release_all()
    await desk.until(task_id, Status.COMPLETED)
    assert await read_ids(desk, task_id) == started
    typed_turns = await list_turns(desk, task_id)
    begun = [type_ for type_, _ in typed_turns].index("turn.submitted")
    assert {turn for _, turn in typed_turns[:begun]} == {None}
    assert {turn for _, turn in typed_turns[begun:]} == {started["turnId"]}


@pytest.mark.requirement("TR-3")
async def test_task_that_ends_before_it_starts_never_has_a_turn(desk: Desk) -> None:
    task_id = await desk.create("echo it")
    made = await read_ids(desk, task_id)
    await desk.do("cancel_task", taskId=task_id)
    await desk.until(task_id, Status.CANCELLED)
    assert await read_ids(desk, task_id) == made
    assert desk.house.peer.messages == []
    await desk.house.restart()

    async def is_read() -> bool:
        return await read_ids(desk, task_id) == made

    await wait_until(is_read, 10, "it is the same after a restart")
