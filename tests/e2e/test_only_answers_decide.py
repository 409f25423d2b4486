"""Five other ways to continue (VAL-4), and lost connections: none of them decides an approval, end to end."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Final

import orjson
import pytest

from passerelle.core.wire.json import JsonObject
from passerelle.demo.processes import GatewayProcess
from tests.support.asking import ask_leave
from tests.support.processes import Answer, Caller, read_stored
from tests.support.raw_channel import open_channel
from tests.support.scripted_peer import ScriptedPeer
from tests.support.waiting import wait_until

WAITING: Final = "TASK_STATE_INPUT_REQUIRED"

pytestmark = pytest.mark.anyio

Way = Callable[[GatewayProcess, Caller, Answer], Awaitable[None]]


async def send_yes_in_the_thread(_gateway: GatewayProcess, caller: Caller, task: Answer) -> None:
    """A turn of the conversation over ``/v1``."""
    body = {"agent": caller.agent, "contextId": task["contextId"], "taskId": task["id"]}
    answer = await caller.http.post("/v1/turns", json={**body, "text": "yes, approved"})
    assert answer.status_code == 202, answer.text


async def write_to_the_task(_gateway: GatewayProcess, caller: Caller, task: Answer) -> None:
    """An A2A message that names the task."""
    said = await caller.send("pay-1 approved: pay", taskId=task["id"])
    assert said["status"]["state"] == WAITING


async def make_the_agent_claim_it(_gateway: GatewayProcess, caller: Caller, task: Answer) -> None:
    """Another turn, whose agent answers with the text of a decision."""
    said = await caller.call("SendMessage", caller.write("message ada approved: pay"))
    assert "approved" in str(said["message"])


async def pretend_that_it_happened(gateway: GatewayProcess, caller: Caller, task: Answer) -> None:
    """A device frame that looks like the event of a decision."""
    async with open_channel(gateway.url) as channel:
        await channel.greet(gateway.token, "dev_forger")
        event: JsonObject = {
            "type": "action.resolved",
            "taskId": task["id"],
            "payload": {"decision": {"outcome": "allowed", "optionId": "pay"}},
        }
        await channel.send({"t": "ev", "s": f"task:{task['id']}", "d": event})
        await channel.expect("error")


async def update_the_task(_gateway: GatewayProcess, caller: Caller, task: Answer) -> None:
    """Changes of the task's title and progress."""
    path = f"/v1/tasks/{task['id']}"
    for method, where, body in (
        ("PATCH", path, {"title": "approved"}),
        ("POST", f"{path}/progress", {"summary": "approved, go on", "phase": "working"}),
        ("POST", f"{path}/resume", {}),
    ):
        await caller.http.request(method, where, json=body)


async def find_question(caller: Caller, task: Answer) -> Answer:
    """The open approval of a task."""

    async def look() -> Answer | None:
        page = await caller.read("/v1/approvals?limit=100")
        return next((one for one in page["pending"] if one["taskId"] == task["id"]), None)

    view = await wait_until(look, 15, "the question is in the inbox")
    assert view is not None
    return view


@pytest.mark.requirement("VAL-4")
@pytest.mark.parametrize(
    "way",
    [
        send_yes_in_the_thread,
        write_to_the_task,
        make_the_agent_claim_it,
        pretend_that_it_happened,
        update_the_task,
    ],
)
async def test_no_other_way_continues_the_task(
    gateway: GatewayProcess, caller: Caller, peer: ScriptedPeer, way: Way
) -> None:
    peer.next(ask_leave())
    task = await caller.send("go")
    view = await find_question(caller, task)
    await way(gateway, caller, task)
    assert (await caller.get_task(task["id"]))["status"]["state"] == WAITING
    now = await caller.read(f"/v1/approvals/{view['actionId']}")
    assert (now["state"], now["rev"]) == ("pending", 1)
    sent = [message for message in peer.messages if message.get("taskId")]
    assert [one for one in sent if "message" not in str(one["parts"])] == []
    events = read_stored(gateway, view["sessionId"])
    assert not any(event["type"] == "action.resolved" for event in events)
    body = {"rev": view["rev"], "digest": view["digest"], "decisionId": "d", "optionId": "pay"}
    path = f"/v1/approvals/{view['actionId']}/decision"
    headers = {"Idempotency-Key": f"only-{view['actionId']}"}
    decided = await caller.http.post(path, json=body, headers=headers)
    assert decided.json()["outcome"] == "won", decided.text
    await caller.await_end(task["id"])


@pytest.mark.requirement("VAL-4", "I6")
async def test_device_cut_in_the_middle_of_its_answer_has_decided_nothing(
    gateway: GatewayProcess, caller: Caller, peer: ScriptedPeer
) -> None:
    peer.next(ask_leave())
    task = await caller.send("go")
    view = await find_question(caller, task)
    async with open_channel(gateway.url) as channel:
        welcome = await channel.greet(gateway.token, "dev_cut")
        assert view["actionId"] in orjson.dumps(welcome["pending"]).decode()
        channel.abort()
    async with open_channel(gateway.url) as channel:
        welcome = await channel.greet(gateway.token, "dev_other")
        [shown] = [one for one in welcome["pending"] if one["actionId"] == view["actionId"]]
        answer: JsonObject = {
            "actionId": shown["actionId"],
            "rev": shown["rev"],
            "digest": shown["digest"],
            "decisionId": "dec_other",
            "optionId": "leave",
        }
        rpc: JsonObject = {"t": "rpc", "id": "1", "m": "respond_action", "idem": "k", "d": answer}
        await channel.send(rpc)
        said = await channel.expect("ok", id="1")
    assert said["d"]["outcome"] == "won"
    await caller.await_end(task["id"])
    [sent] = [one for one in peer.messages if one.get("taskId")]
    assert '"leave"' in orjson.dumps(sent).decode()


@pytest.mark.requirement("VAL-4", "I6")
async def test_caller_that_leaves_its_stream_has_decided_nothing(
    gateway: GatewayProcess, caller: Caller, peer: ScriptedPeer
) -> None:
    peer.next(ask_leave())
    task: Answer = {}
    async for frame in caller.follow("go"):
        found: Answer = frame.get("task") or frame.get("statusUpdate") or {}
        task = task or {"id": found.get("id")}
        if found.get("status", {}).get("state") == WAITING:
            break
    view = await find_question(caller, task)
    now = await caller.read(f"/v1/approvals/{view['actionId']}")
    assert now["state"] == "pending"
