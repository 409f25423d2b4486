"""Messages and failures of peers, seen through the whole product."""

from __future__ import annotations

import asyncio
from typing import cast

import pytest

from passerelle.demo.processes import GatewayProcess
from tests.support.processes import Answer, Caller, read_stored
from tests.support.scripted_peer import ScriptedPeer
from tests.support.scripted_tasks import Turn
from tests.support.waiting import wait_until

pytestmark = pytest.mark.anyio


async def read_events(gateway: GatewayProcess, caller: Caller, task_id: str) -> list[Answer]:
    """All stored events of the session of a task."""
    record = await caller.read_record(task_id)
    return read_stored(gateway, record["sessionId"])


def types_of(events: list[Answer]) -> list[str]:
    return [event["type"] for event in events]


@pytest.mark.requirement("EVC-5")
async def test_messages_of_a_peer_in_an_unchanged_state_change_no_status(
    gateway: GatewayProcess, caller: Caller, peer: ScriptedPeer
) -> None:
    async def talk(turn: Turn) -> None:
        await turn.status("WORKING")
        await turn.status("WORKING", "half of it is done")
        await turn.status("COMPLETED")

    async def work(turn: Turn) -> None:
        await turn.status("WORKING")
        await turn.status("COMPLETED")

    peer.next(talk, work)
    frames = await caller.stream("talk to me")
    events = await read_events(gateway, caller, frames[0]["task"]["id"])
    (said,) = [event for event in events if event["payload"].get("text") == "half of it is done"]
    assert said["type"] == "run.status"
    assert said["payload"]["nativeStatus"] == "TASK_STATE_WORKING"
    frame = said["payload"]["a2a"]["statusUpdate"]
    assert frame["status"]["state"] == "TASK_STATE_WORKING"
    assert said["payload"]["a2a"] in frames
    silent = await caller.stream("do not talk")
    others = await read_events(gateway, caller, silent[0]["task"]["id"])
    assert moves_in(events) == moves_in(others)


def moves_in(events: list[Answer]) -> list[str]:
    return [kind for kind in types_of(events) if kind.startswith("task.")]


@pytest.mark.requirement("EVC-19")
async def test_malformed_frame_is_one_warning_and_the_stream_continues(
    gateway: GatewayProcess, caller: Caller
) -> None:
    frames = await caller.stream("malformed")
    states = [
        frame["statusUpdate"]["status"]["state"] for frame in frames if "statusUpdate" in frame
    ]
    assert states[-1] == "TASK_STATE_COMPLETED"
    texts = [
        frame["artifactUpdate"]["artifact"]["parts"][0]["text"]
        for frame in frames
        if "artifactUpdate" in frame
    ]
    assert texts == ["after the malformed frame"]
    events = await read_events(gateway, caller, frames[0]["task"]["id"])
    assert types_of(events).count("runtime.warning") == 1


@pytest.mark.requirement("AP-8")
async def test_cleanly_closed_stream_completes_nothing(
    gateway: GatewayProcess, caller: Caller, peer: ScriptedPeer
) -> None:
    reading = asyncio.create_task(caller.stream("close"))
    asked = ("GetTask", "SubscribeToTask")
    await wait_until(lambda: any(map(peer.count, asked)), 10, "the gateway asks the peer")
    (listed,) = (await caller.call("ListTasks", {"status": "TASK_STATE_WORKING"}))["tasks"]
    record = await caller.read_record(listed["id"])
    assert record["status"] == "running"
    assert "task.completed" not in types_of(await read_events(gateway, caller, listed["id"]))
    (remote,) = [task for task in peer.tasks.values() if task.state == "WORKING"]
    remote.status("COMPLETED")
    frames = await asyncio.wait_for(reading, 15)
    assert frames[-1]["statusUpdate"]["status"]["state"] == "TASK_STATE_COMPLETED"
    assert (await caller.read_record(listed["id"]))["status"] == "completed"


@pytest.mark.requirement("LT-12")
async def test_ended_task_refuses_messages_and_cancels_and_stays_unchanged(
    gateway: GatewayProcess, caller: Caller, peer: ScriptedPeer
) -> None:
    for words in ("done", "fail", "reject", "canceled"):
        task = await caller.send(words)
        before = await read_events(gateway, caller, task["id"])
        record = await caller.read_record(task["id"])
        sent = peer.count("SendStreamingMessage") + peer.count("SendMessage")
        again = await caller.ask("SendMessage", caller.write("once more", taskId=task["id"]))
        assert again["error"]["code"] == -32004
        cancel = await caller.ask("CancelTask", {"id": task["id"]})
        assert cancel["error"]["code"] == -32002
        assert await caller.get_task(task["id"]) == task
        assert await caller.read_record(task["id"]) == record
        assert await read_events(gateway, caller, task["id"]) == before
        assert peer.count("SendStreamingMessage") + peer.count("SendMessage") == sent


@pytest.mark.requirement("ID-9")
async def test_input_request_of_a_peer_is_one_action_until_its_answer(
    gateway: GatewayProcess, caller: Caller, peer: ScriptedPeer
) -> None:
    asked = await caller.send("ask Which colour?")
    assert asked["status"]["state"] == "TASK_STATE_INPUT_REQUIRED"
    record = await caller.read_record(asked["id"])
    (action_id,) = record["openActions"]
    pending = await wait_until(lambda: read_pending(caller), 15, "the question is pending")
    assert [(view["actionId"], view["taskId"]) for view in pending] == [(action_id, asked["id"])]
    done = await caller.send("blue", taskId=asked["id"])
    assert done["status"]["state"] == "TASK_STATE_COMPLETED"
    assert peer.texts[-1] == "blue"
    events = await read_events(gateway, caller, asked["id"])
    about = [event for event in events if event.get("actionId") and event["type"][:7] == "action."]
    assert [event["type"] for event in about] == ["action.required", "action.resolved"]
    assert {event["actionId"] for event in about} == {action_id}
    assert {event["taskId"] for event in about} == {asked["id"]}
    assert await read_pending(caller) == []


async def read_pending(caller: Caller) -> list[Answer]:
    return cast("list[Answer]", (await caller.read("/v1/approvals"))["pending"])
