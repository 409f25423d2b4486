"""SendMessage: tasks, bare messages, how long a caller waits, and what reaches the peer."""

from __future__ import annotations

import asyncio
from typing import cast

import pytest

from passerelle.core.commands import GetRecord
from passerelle.core.ids import read_shard
from passerelle.core.principal import OWNER
from passerelle.core.wire.json import JsonObject
from passerelle.delegation.runs.peer_profile import PeerTerms
from tests.integration.a2a.rig import Answer, Rig
from tests.support.scripted_tasks import Turn
from tests.support.waiting import wait_until

pytestmark = pytest.mark.anyio


@pytest.mark.requirement("LT-1", "LT-3", "A2A-9", "A2A-10")
async def test_send_waits_for_the_end_of_the_task(rig: Rig) -> None:
    task = await rig.send("hello there")
    assert task["status"]["state"] == "TASK_STATE_COMPLETED"
    assert task["artifacts"][0]["parts"] == [{"text": "hello there"}]
    assert task["contextId"].startswith("ctx_")
    assert await rig.call("GetTask", {"id": task["id"]}) == task


@pytest.mark.requirement("LT-1", "LT-6")
async def test_bare_message_is_answered_as_a_message_and_leaves_no_task(rig: Rig) -> None:
    answer = await rig.call("SendMessage", rig.message("message well then"))
    assert set(answer) == {"message"}
    assert answer["message"]["parts"] == [{"text": "well then"}]
    assert answer["message"]["contextId"].startswith("ctx_")
    assert "taskId" not in answer["message"]
    assert (await rig.call("ListTasks", {}))["tasks"] == []


@pytest.mark.requirement("LT-1", "LT-6")
async def test_bare_message_is_the_only_event_of_its_stream(rig: Rig) -> None:
    events = await rig.collect("SendStreamingMessage", rig.message("message well then"))
    assert [list(event.result) for event in events] == [["message"]]


async def test_non_blocking_send_gets_the_task_in_its_first_status(rig: Rig) -> None:
    params = rig.message("silent", configuration={"returnImmediately": True})
    task = (await rig.call("SendMessage", params))["task"]
    assert task["status"]["state"] == "TASK_STATE_SUBMITTED"


async def test_snake_case_is_read_like_camel_case(rig: Rig) -> None:
    message = {
        "message_id": "m",
        "role": "ROLE_USER",
        "parts": [{"text": "hi", "media_type": "a/b"}],
    }
    params: JsonObject = {
        "message": cast("JsonObject", message),
        "configuration": {"history_length": 0, "return_immediately": False},
    }
    task = (await rig.call("SendMessage", params))["task"]
    assert "history" not in task
    assert rig.peer.messages[0]["messageId"] == "m"
    assert (await rig.call("GetTask", {"id": task["id"], "history_length": 1}))["history"]


async def test_history_has_the_requested_length(rig: Rig) -> None:
    task = await rig.send("ask which?")
    await rig.send("blue", taskId=task["id"])
    whole = (await rig.call("GetTask", {"id": task["id"]}))["history"]
    assert len(whole) > 2
    for length in (0, 1, 2):
        found = await rig.call("GetTask", {"id": task["id"], "historyLength": length})
        assert found.get("history", []) == whole[len(whole) - length :]


@pytest.mark.requirement("A2A-9")
async def test_message_reaches_the_peer_unchanged(rig: Rig) -> None:
    members: JsonObject = {
        "metadata": {"urn:x": {"n": 2**53 + 1, "snake_case": None}},
        "extensions": ["urn:e"],
        "somethingNew": [1],
    }
    more: JsonObject = {"metadata": {"a": 1}, "alsoNew": True}
    params = rig.message("hello", configuration=None, **members) | more
    await rig.call("SendMessage", params)
    sent = rig.peer.messages[0]
    asked = cast("JsonObject", params["message"])
    assert {name: sent[name] for name in asked} == asked
    assert rig.peer.requests[-1].params["alsoNew"] is True


async def test_repeated_message_id_creates_a_new_task_each_time(rig: Rig) -> None:
    params = rig.message("hello")
    tasks = [(await rig.call("SendMessage", params))["task"]["id"] for _ in range(3)]
    assert len(set(tasks)) == 3
    assert rig.counted() == 3


async def test_idempotency_key_makes_one_turn_of_two_requests(rig: Rig) -> None:
    params = rig.message("hello")
    headers = {"Idempotency-Key": "k-1"}
    first = await rig.post("SendMessage", params, **headers)
    again = await rig.post("SendMessage", params, **headers)
    assert first.json() == again.json()
    assert rig.counted() == 1
    other = await rig.post("SendMessage", rig.message("another"), **headers)
    assert other.json()["error"]["data"][0]["reason"] == "CONFLICT"


@pytest.mark.requirement("A2A-1", "A2A-3", "A2A-4", "A2A-7", "A2A-8", "A2A-12")
async def test_ids_of_the_peer_are_recorded_and_never_sent(rig: Rig) -> None:
    rig.peer.use_task_ids("remote-marker-0001")
    events = await rig.collect("SendStreamingMessage", rig.message("chunks 2"))
    task_id = events[0].result["task"]["id"]
    shown = "".join(event.data for event in events)
    for method, params in (("GetTask", {"id": task_id}), ("ListTasks", {})):
        shown += (await rig.post(method, cast("JsonObject", params))).text
    record = cast("Answer", await rig.service.read(OWNER, GetRecord(task_id)))
    attempt = record["attempts"][0]
    assert attempt["remoteTaskId"] == "remote-marker-0001"
    assert attempt["nativeStatus"] == "TASK_STATE_COMPLETED"
    assert attempt["remoteContextId"] == rig.peer.messages[0]["contextId"]
    assert attempt["remoteContextId"] not in shown
    assert "remote-marker" not in shown
    assert record["taskId"] == task_id


@pytest.mark.requirement("A2A-1", "TR-4", "TR-7", "TR-10", "TR-20", "ID-3", "ID-4", "ID-5")
async def test_record_of_a_task_has_its_content_its_scope_and_its_times(rig: Rig) -> None:
    task = await rig.send("hello there\nand more")
    record = cast("Answer", await rig.service.read(OWNER, GetRecord(task["id"])))
    assert (record["title"], record["objective"]) == ("hello there", "hello there\nand more")
    assert record["status"] == "completed"
    assert record["scope"]["contextId"] == task["contextId"]
    shards = {read_shard(record[name]) for name in ("taskId", "sessionId", "threadId", "turnId")}
    assert len(shards) == 1
    assert shards != {None}
    times = [record[name] for name in ("createdAt", "startedAt", "endedAt")]
    assert times == sorted(times)
    assert record["updatedAt"] >= record["startedAt"]


async def test_call_to_the_peer_is_in_the_trace_of_the_caller(rig: Rig) -> None:
    trace = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    for method in ("SendMessage", "SendStreamingMessage"):
        await rig.post(method, rig.message("hello"), traceparent=trace, tracestate="vendor=1")
    await rig.post("SendMessage", rig.message("hello"))
    sent = [request.headers for request in rig.peer.requests if request.method.startswith("Send")]
    parents = [headers.get("traceparent") for headers in sent]
    # The caller's trace id, with a span of the gateway for each run.
    assert [parent and parent[:36] for parent in parents] == [trace[:36], trace[:36], None]
    assert len({trace, *parents}) == 4
    assert [headers.get("tracestate") for headers in sent] == ["vendor=1", "vendor=1", None]


async def test_error_of_the_peer_keeps_its_class_without_its_ids(rig: Rig) -> None:
    async def refuse(turn: Turn) -> None:
        await turn.refuse(-32602, "Task 0b1946d0-remote-77 is not for you")

    rig.peer.next(refuse)
    response = await rig.post("SendMessage", rig.message("hello"))
    assert response.json()["error"]["code"] == -32602
    assert "0b1946d0" not in response.text


async def test_unreachable_agent_is_a_typed_error_and_nothing_is_written(
    rig: Rig,
) -> None:
    before = rig.list_keys()
    response = await rig.post("SendMessage", rig.message("hello"), agent="gone")
    assert (response.status_code, response.headers["retry-after"]) == (503, "1")
    error = response.json()["error"]
    assert (error["code"], error["data"][0]["reason"]) == (-32603, "UNAVAILABLE")
    assert "127.0.0.1" not in response.text
    assert rig.list_keys() == before


async def test_agent_that_became_unreachable_is_a_typed_error_without_its_address(rig: Rig) -> None:
    await rig.send("hello")
    address = rig.peer.url.partition("//")[2]
    await rig.peer.stop()
    for method in ("SendMessage", "SendStreamingMessage"):
        response = await rig.post(method, rig.message("hello"))
        assert response.status_code == 503
        assert response.json()["error"]["data"][0]["reason"] == "UNAVAILABLE"
        assert address not in response.text
    assert len((await rig.call("ListTasks", {}))["tasks"]) == 1


async def test_reads_of_stored_state_do_not_need_the_peer(rig: Rig) -> None:
    task = await rig.send("hello")
    await rig.peer.stop()
    assert await rig.call("GetTask", {"id": task["id"]}) == task
    assert len((await rig.call("ListTasks", {}))["tasks"]) == 1


async def test_cancel_stops_the_peer_and_is_refused_once_the_task_has_ended(rig: Rig) -> None:
    params = rig.message("silent", configuration={"returnImmediately": True})
    task = (await rig.call("SendMessage", params))["task"]
    cancelled = await rig.call("CancelTask", {"id": task["id"]})
    assert cancelled["id"] == task["id"]

    async def has_ended() -> bool:
        now = await rig.call("GetTask", {"id": task["id"]})
        return bool(now["status"]["state"] == "TASK_STATE_CANCELED")

    await wait_until(has_ended, 15, "the task is cancelled")
    assert rig.peer.count("CancelTask") == 1
    error = await rig.refuse("CancelTask", {"id": task["id"]})
    assert error["code"] == -32002


async def test_waiting_caller_that_disconnects_ends_only_its_own_wait(rig: Rig) -> None:
    async def story(turn: Turn) -> None:
        await turn.status("WORKING")
        await turn.status("COMPLETED")

    rig.peer.next(story)
    rig.peer.hold()
    asking = asyncio.create_task(rig.post("SendMessage", rig.message("hello")))
    await wait_until(lambda: rig.counted() == 1, 15, "the peer has the message")
    asking.cancel()
    await asyncio.gather(asking, return_exceptions=True)
    rig.peer.release_all()

    async def is_done() -> bool:
        tasks = (await rig.call("ListTasks", {}))["tasks"]
        return [task["status"]["state"] for task in tasks] == ["TASK_STATE_COMPLETED"]

    await wait_until(is_done, 15, "the run has gone on to its end")
    await wait_until(
        lambda: b'operation="SendMessage",outcome="left"' in rig.metrics.render(),
        15,
        "the caller is counted as gone",
    )


async def test_every_request_is_counted(rig: Rig) -> None:
    await rig.send("hello")
    await rig.refuse("GetTask", {"id": "task_none"})
    counted = rig.metrics.render().decode()
    one = 'passerelle_requests_total{agent="echo",operation="%s",outcome="%s"} 1.0'
    assert one % ("SendMessage", "ok") in counted
    assert one % ("GetTask", "not_found") in counted
    assert 'passerelle_request_seconds_count{agent="echo",operation="SendMessage"} 1.0' in counted


@pytest.mark.requirement("LT-8")
async def test_agent_answers_with_messages_or_always_tasks_as_configured(rig: Rig) -> None:
    said = await rig.call("SendMessage", rig.message("message hi"))
    assert list(said) == ["message"]
    rig.terms["echo"] = PeerTerms(always_task=True)
    params = rig.message("message hi")
    task = (await rig.call("SendMessage", params))["task"]
    assert task["status"]["state"] == "TASK_STATE_COMPLETED"
    assert task["status"]["message"]["parts"] == [{"text": "hi"}]
    assert [artifact["parts"] for artifact in task["artifacts"]] == [[{"text": "hi"}]]
    assert task["history"][0]["parts"] == [{"text": "message hi"}]
    assert await rig.call("GetTask", {"id": task["id"]}) == task
    listed = await rig.call("ListTasks", {"contextId": task["contextId"]})
    assert [one["id"] for one in listed["tasks"]] == [task["id"]]
    native = await rig.send("hello")
    assert native["artifacts"][0]["parts"] == [{"text": "hello"}]
    frames = await rig.collect("SendStreamingMessage", rig.message("message hi"))
    assert [list(frame.result) for frame in frames] == [
        ["task"],
        ["artifactUpdate"],
        ["statusUpdate"],
    ]


@pytest.mark.requirement("LT-8")
async def test_always_task_agent_has_a_task_before_it_is_called(rig: Rig) -> None:
    rig.terms["echo"] = PeerTerms(always_task=True)
    rig.peer.hold()
    params = rig.message("message hi", configuration={"returnImmediately": True})
    before = len(rig.appends)
    task = (await rig.call("SendMessage", params))["task"]
    assert task["status"]["state"] == "TASK_STATE_SUBMITTED"
    assert (await rig.call("GetTask", {"id": task["id"]})) == task
    listed = await rig.call("ListTasks", {})
    assert [one["id"] for one in listed["tasks"]] == [task["id"]]
    async with rig.stream("SubscribeToTask", {"id": task["id"]}) as events:
        assert (await anext(events)).result == {"task": task}
        rig.peer.release_all()
        rest = [event.result async for event in events]
    assert [list(frame) for frame in rest] == [["artifactUpdate"], ["statusUpdate"]]
    assert rest[-1]["statusUpdate"]["status"]["state"] == "TASK_STATE_COMPLETED"
    done = await rig.call("GetTask", {"id": task["id"]})
    assert done["artifacts"][0]["parts"] == [{"text": "hi"}]
    assert len(rig.appends) == before + 2


@pytest.mark.requirement("LT-8")
async def test_refusal_of_an_always_task_agent_is_a_failed_task(rig: Rig) -> None:
    rig.terms["echo"] = PeerTerms(always_task=True)
    for text in ("refuse", "refuse again"):
        task = await rig.send(text)
        assert task["status"]["state"] == "TASK_STATE_FAILED"
        assert "scripted-task" not in str(task)
    frames = await rig.collect("SendStreamingMessage", rig.message("refuse"))
    assert [list(frame.result) for frame in frames] == [["task"], ["statusUpdate"]]
    assert frames[-1].result["statusUpdate"]["status"]["state"] == "TASK_STATE_FAILED"
