"""The length of the history in a Task (A2A 1.0 section 3.2.4)."""

from __future__ import annotations

import pytest

from tests.conformance.callers import Caller, Json, make_params
from tests.conformance.shapes import check_task
from tests.conformance.site import write

pytestmark = pytest.mark.anyio


async def converse(caller: Caller) -> tuple[Json, list[Json]]:
    """A completed task with four messages of the caller."""
    sent = [write("tck-input-required", "the first")]
    task = await caller.make_task(sent[0])
    for prefix, text in (
        ("tck-input-required", "the second"),
        ("tck-input-required", "the third"),
        ("tck-complete-task", "the last"),
    ):
        sent.append(write(prefix, text, taskId=task["id"]))
        task = await caller.make_task(sent[-1])
    return task, sent


@pytest.mark.kit("CORE-HIST-001", "CORE-HIST-003")
async def test_zero_length_omits_the_history(caller: Caller) -> None:
    task = await caller.make_task(write("tck-complete-task"), historyLength=0)
    assert "history" not in task
    assert "history" not in await caller.read_task(task["id"], historyLength=0)
    listed = await caller.call("ListTasks", {"contextId": task["contextId"], "historyLength": 0})
    assert all("history" not in one for one in listed.said["tasks"])


@pytest.mark.kit("CORE-HIST-002")
async def test_history_is_never_longer_than_asked_and_is_the_latest(caller: Caller) -> None:
    task, _ = await converse(caller)
    whole = task["history"]
    for length in (1, 2, 3):
        found = await caller.read_task(task["id"], historyLength=length)
        check_task(found)
        assert found["history"] == whole[-length:]
    assert (await caller.read_task(task["id"], historyLength=100))["history"] == whole


@pytest.mark.kit("CORE-HIST-004", "CORE-HIST-005", "CORE-HIST-006")
async def test_every_message_of_the_caller_is_kept_unchanged_in_order(caller: Caller) -> None:
    task, sent = await converse(caller)
    kept = [one for one in task["history"] if one["role"] == "ROLE_USER"]
    assert [(one["messageId"], one["parts"]) for one in kept] == [
        (one["messageId"], one["parts"]) for one in sent
    ]
    assert {one.get("taskId", task["id"]) for one in kept} == {task["id"]}
    assert {one.get("contextId", task["contextId"]) for one in kept} == {task["contextId"]}


@pytest.mark.parametrize("length", [None, 0, 1])
async def test_a_stream_has_as_much_history_as_was_asked_for(
    caller: Caller, length: int | None
) -> None:
    configuration = {} if length is None else {"historyLength": length}
    asked = await caller.make_task(write("tck-input-required"))
    opening = write("tck-complete-task")
    answer = {**write("tck-complete-task"), "taskId": asked["id"]}
    for message in (opening, answer):
        params = make_params(message, **configuration)
        async with caller.stream("SendStreamingMessage", params) as stream:
            items = await stream.collect()
        shown = [len(one["task"].get("history", [])) for one in items if "task" in one]
        assert shown
        assert all(count > 0 if length is None else count <= length for count in shown), shown
