"""The session, the thread and the turn that a task belongs to: from a message, from a job, and made before any turn."""

from __future__ import annotations

from typing import Any, Final

import pytest

from passerelle.core.task.status import Status
from tests.integration.control.job_bench import Bench
from tests.support.control_client import ControlClient
from tests.support.waiting import wait_until

pytestmark = pytest.mark.anyio

IDS: Final = ("sessionId", "threadId", "turnId")
Found = dict[str, Any]


async def read_line(control: ControlClient, task_id: str, session_id: str) -> Found:
    """A task as the list of its session has it, which may be behind."""

    async def find() -> Found | None:
        listed: Any = await control.do("get_session_tasks", sessionId=session_id)
        lines = [dict(one) for one in listed["tasks"] if one["taskId"] == task_id]
        return lines[0] if lines else None

    found = await wait_until(find, 10, "the session lists its task")
    assert found is not None
    return found


async def read_ids(control: ControlClient, task_id: str) -> Found:
    """The three ids, which the record and the line of a task say alike; an id that it has not is None."""
    record: Any = await control.do("get_task", taskId=task_id)
    line = await read_line(control, task_id, record["sessionId"])
    ids = {name: record.get(name) for name in IDS}
    assert {name: line.get(name) for name in IDS} == ids
    assert ("turnId" in line["marks"]) is (ids["turnId"] is None)
    return ids


async def list_turns(control: ControlClient, task_id: str) -> list[tuple[str, str | None]]:
    """The class and the turn of each event of a task, in order."""
    return [(event.type, event.fact.scope.turn_id) for event in await control.events(task_id)]


@pytest.mark.requirement("TR-3")
async def test_task_of_a_message_has_the_ids_of_the_turn_that_made_it(
    control: ControlClient,
) -> None:
    first: Any = await control.do("submit_turn", "k-1", agent="echo", text="ask which?")
    assert await read_ids(control, first["taskId"]) == {name: first[name] for name in IDS}
    await control.until(first["taskId"], Status.WAITING_INPUT)
    beside: Any = await control.do(
        "submit_turn", "k-2", agent="echo", text="echo two", contextId=first["contextId"]
    )
    assert await read_ids(control, beside["taskId"]) == {
        **{name: first[name] for name in IDS},
        "turnId": beside["turnId"],
    }
    again: Any = await control.do(
        "submit_turn", "k-3", agent="echo", text="blue", taskId=first["taskId"]
    )
    await control.until(first["taskId"], Status.COMPLETED)
    assert (await read_ids(control, first["taskId"]))["turnId"] == again["turnId"]
    turns = [
        turn for type_, turn in await list_turns(control, first["taskId"]) if "created" in type_
    ]
    assert turns == [first["turnId"]], "what has happened keeps the turn in which it has"


@pytest.mark.requirement("TR-3")
async def test_task_of_a_job_item_has_the_ids_of_its_own_turn(control: ControlClient) -> None:
    bench = Bench(control)
    job = await bench.make(["echo one", "echo two"])
    await bench.finish(job)
    rows = await bench.table(job)
    ids = [await read_ids(control, row["taskId"]) for row in rows]
    assert None not in [one[name] for one in ids for name in IDS]
    assert len({one["turnId"] for one in ids}) == len(rows)
    for row, one in zip(rows, ids, strict=True):
        submitted = [
            turn
            for type_, turn in await list_turns(control, row["taskId"])
            if type_ == "turn.submitted"
        ]
        assert submitted == [one["turnId"]]


@pytest.mark.requirement("TR-3")
@pytest.mark.parametrize("draft", [True, False])
async def test_created_task_has_no_turn_until_it_starts(
    control: ControlClient, *, draft: bool
) -> None:
    control.harness.peer.hold()
    task_id = await control.create("echo it", draft=draft)
    made = await read_ids(control, task_id)
    assert made["turnId"] is None
    assert made["sessionId"]
    assert made["threadId"]
    assert {turn for _, turn in await list_turns(control, task_id)} == {None}
    await control.do("update_task", taskId=task_id, title="It")
    assert await read_ids(control, task_id) == made
    await control.do("start_task", "s", taskId=task_id)
    started = await read_ids(control, task_id)
    assert started["turnId"] is not None
    assert {**started, "turnId": None} == made, "it stays where it was made"
    control.harness.peer.release_all()
    await control.until(task_id, Status.COMPLETED)
    assert await read_ids(control, task_id) == started
    told = await list_turns(control, task_id)
    begun = [type_ for type_, _ in told].index("turn.submitted")
    assert {turn for _, turn in told[:begun]} == {None}
    assert {turn for _, turn in told[begun:]} == {started["turnId"]}


@pytest.mark.requirement("TR-3")
async def test_task_that_ends_before_it_starts_never_has_a_turn(control: ControlClient) -> None:
    task_id = await control.create("echo it")
    made = await read_ids(control, task_id)
    await control.do("cancel_task", taskId=task_id)
    await control.until(task_id, Status.CANCELLED)
    assert await read_ids(control, task_id) == made
    assert control.harness.peer.messages == []
    await control.harness.restart()

    async def is_read() -> bool:
        return await read_ids(control, task_id) == made

    await wait_until(is_read, 10, "it is the same after a restart")
