"""Conversations: by task id, by context id, and what an ended task still accepts."""

from __future__ import annotations

import pytest

from passerelle.core.commands import GetRecord
from passerelle.core.principal import OWNER
from tests.integration.a2a.rig import Rig

pytestmark = pytest.mark.anyio


@pytest.mark.requirement("LT-5", "ID-4", "ID-5")
async def test_message_with_a_task_id_continues_that_task(rig: Rig) -> None:
    asked = await rig.send("ask which colour?")
    assert asked["status"]["state"] == "TASK_STATE_INPUT_REQUIRED"
    done = await rig.send("blue", taskId=asked["id"])
    assert (done["id"], done["contextId"]) == (asked["id"], asked["contextId"])
    assert done["status"]["state"] == "TASK_STATE_COMPLETED"
    sent = rig.peer.messages
    assert [message.get("taskId") for message in sent] == [None, "echo-task-1"]
    assert sent[0]["contextId"] == sent[1]["contextId"]
    texts = [part["parts"][0]["text"] for part in done["history"] if part["role"] == "ROLE_USER"]
    assert texts == ["ask which colour?", "blue"]
    ids = {(one["taskId"], one["contextId"]) for one in done["history"]}
    assert ids == {(asked["id"], asked["contextId"])}
    assert (await rig.call("GetTask", {"id": asked["id"]}))["history"] == done["history"]


@pytest.mark.requirement("LT-4", "LT-11", "ID-3")
async def test_message_with_a_context_id_creates_a_new_task_in_that_context(rig: Rig) -> None:
    first = await rig.send("hello")
    second = await rig.send("again", contextId=first["contextId"])
    assert second["id"] != first["id"]
    assert second["contextId"] == first["contextId"]
    third = await rig.call("SendMessage", rig.message("message hi", contextId=first["contextId"]))
    assert third["message"]["contextId"] == first["contextId"]
    assert len({str(message["contextId"]) for message in rig.peer.messages}) == 1
    listed = await rig.call("ListTasks", {"contextId": first["contextId"]})
    assert {task["id"] for task in listed["tasks"]} == {first["id"], second["id"]}
    records = [await rig.service.read(OWNER, GetRecord(task["id"])) for task in (first, second)]
    assert records[0]["sessionId"] == records[1]["sessionId"]
    assert records[0]["threadId"] == records[1]["threadId"]


@pytest.mark.requirement("LT-4", "LT-20")
async def test_context_id_of_the_caller_is_kept_and_is_scoped_to_it(rig: Rig) -> None:
    mine = await rig.send("hello", contextId="my-context")
    assert mine["contextId"] == "my-context"
    other = await rig.post(
        "SendMessage",
        rig.message("hello", contextId="my-context"),
        Authorization="Bearer other-key",
    )
    assert other.json()["result"]["task"]["contextId"] == "my-context"
    assert len((await rig.call("ListTasks", {"contextId": "my-context"}))["tasks"]) == 1
    assert str(rig.peer.messages[0]["contextId"]) != "my-context"


@pytest.mark.requirement("LT-5", "ID-3")
async def test_task_id_with_another_tasks_context_is_refused(rig: Rig) -> None:
    one, other = await rig.send("ask which?"), await rig.send("hello")
    wrong = rig.message("blue", taskId=one["id"], contextId=other["contextId"])
    error = await rig.refuse("SendMessage", wrong)
    assert error["code"] == -32602
    assert error["data"][1]["fieldViolations"][0]["field"] == "message.contextId"
    assert rig.counted() == 2
    assert await rig.call("GetTask", {"id": one["id"]}) == one


@pytest.mark.requirement("LT-5")
@pytest.mark.parametrize("task_id", ["nothing", "task_3701m7x0jafkdbfenfhck7t5ws98", "task_x~1"])
async def test_message_to_an_unknown_task_is_not_found_and_creates_none(
    rig: Rig, task_id: str
) -> None:
    before = rig.list_keys()
    for method in ("SendMessage", "SendStreamingMessage"):
        error = await rig.refuse(method, rig.message("hello", taskId=task_id))
        assert error["code"] == -32001
    assert rig.counted() == 0
    assert rig.list_keys() == before


async def test_task_of_another_caller_equals_an_unknown_one(rig: Rig) -> None:
    task = await rig.send("ask which?")
    calls = {
        "GetTask": {"id": task["id"]},
        "CancelTask": {"id": task["id"]},
        "SubscribeToTask": {"id": task["id"]},
        "SendMessage": rig.message("blue", taskId=task["id"]),
    }
    for method, params in calls.items():
        response = await rig.post(method, params, Authorization="Bearer other-key")
        assert response.json()["error"]["code"] == -32001, method
    listed = await rig.post("ListTasks", {}, Authorization="Bearer other-key")
    assert listed.json()["result"]["tasks"] == []


async def test_task_of_one_agent_is_unknown_at_another_agents_address(rig: Rig) -> None:
    task = await rig.send("ask which?")
    calls = {
        "GetTask": {"id": task["id"]},
        "CancelTask": {"id": task["id"]},
        "SubscribeToTask": {"id": task["id"]},
        "SendMessage": rig.message("blue", taskId=task["id"]),
        "SendStreamingMessage": rig.message("blue", taskId=task["id"]),
    }
    for method, params in calls.items():
        error = await rig.refuse(method, params, agent="gone")
        assert error["code"] == -32001, method
    assert (await rig.call("ListTasks", {}, agent="gone"))["tasks"] == []
    assert await rig.call("GetTask", {"id": task["id"]}) == task


@pytest.mark.requirement("LT-12")
@pytest.mark.parametrize(
    ("text", "state"),
    [
        ("hello", "COMPLETED"),
        ("fail because", "FAILED"),
        ("reject because", "REJECTED"),
        ("canceled because", "CANCELED"),
    ],
)
async def test_ended_task_is_frozen(rig: Rig, text: str, state: str) -> None:
    task = await rig.send(text)
    assert task["status"]["state"] == f"TASK_STATE_{state}"
    sent = rig.counted()
    again = rig.message("once more", taskId=task["id"])
    assert (await rig.refuse("SendMessage", again))["code"] == -32004
    assert (await rig.refuse("SendStreamingMessage", again))["code"] == -32004
    assert (await rig.refuse("CancelTask", {"id": task["id"]}))["code"] == -32002
    assert (await rig.refuse("SubscribeToTask", {"id": task["id"]}))["code"] == -32004
    assert await rig.call("GetTask", {"id": task["id"]}) == task
    assert rig.counted() == sent


@pytest.mark.requirement("LT-9")
async def test_message_after_a_task_belongs_to_that_task(rig: Rig) -> None:
    events = await rig.collect("SendStreamingMessage", rig.message("message-after-task"))
    assert all("message" not in event.result for event in events)
    said = [
        event.result["statusUpdate"]["status"].get("message", {}).get("parts")
        for event in events
        if "statusUpdate" in event.result
    ]
    assert [{"text": "a message after the task"}] in said


@pytest.mark.requirement("LT-5")
async def test_stream_of_a_follow_up_starts_with_the_task_and_continues_from_there(
    rig: Rig,
) -> None:
    asked = await rig.send("ask which?")
    events = await rig.collect("SendStreamingMessage", rig.message("blue", taskId=asked["id"]))
    assert events[0].result["task"]["id"] == asked["id"]
    assert all("task" not in event.result for event in events[1:])
    assert not any("INPUT_REQUIRED" in event.data for event in events[1:])
    assert events[-1].result["statusUpdate"]["status"]["state"] == "TASK_STATE_COMPLETED"
    shown = [event for event in events if "artifactUpdate" in event.result]
    assert len(shown) == 1


async def test_answer_reusing_an_earlier_message_id_reaches_the_agent(rig: Rig) -> None:
    asked = await rig.send("ask which?")
    answer = rig.message("blue", taskId=asked["id"])
    message = answer["message"]
    assert isinstance(message, dict)
    message["messageId"] = asked["history"][0]["messageId"]
    done = (await rig.call("SendMessage", answer))["task"]
    assert done["status"]["state"] == "TASK_STATE_COMPLETED"
    assert done["artifacts"][0]["parts"] == [{"text": "answer: blue"}]
