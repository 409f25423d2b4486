"""What a caller may do: each edge checks the same permissions."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from passerelle.core.wire.json import JsonObject
    from tests.integration.callers.rig import Answer, Instance, Rig

pytestmark = pytest.mark.anyio
SENDER = {
    "name": "sender",
    "may_call": [{"agent": "echo", "operations": ["SendMessage", "SendStreamingMessage"]}],
}
PROXY = {"addresses": ["127.0.0.1/32"], "certificate_header": "X-Client-Identity"}
READER = {
    "name": "reader",
    "may_call": [{"agent": "echo", "operations": ["GetTask"]}],
    "scopes": ["a2a:call", "tasks:read", "tasks:write"],
}
TILL = {"name": "till", "certificate": "CN=till"}
ROOT = {"name": "root", "certificate": "CN=root"}


async def ask_rpc(instance: Instance, headers: list[tuple[str, str]]) -> int:
    body: JsonObject = {"jsonrpc": "2.0", "id": 1, "method": "ListTasks", "params": {}}
    answer = await instance.http.post("/agents/echo", json=body, headers=headers)
    return answer.status_code


async def ask_v1(instance: Instance, headers: list[tuple[str, str]]) -> int:
    return (await instance.http.get("/v1/agents", headers=headers)).status_code


async def test_the_identity_header_added_by_the_proxy_counts_on_each_edge(rig: Rig) -> None:
    """The proxy appends its header after the caller's own."""
    one = await rig.start(clients=[TILL, ROOT], proxy=PROXY)
    for said, status in (("CN=till", 200), ("CN=nobody", 401)):
        headers = [("X-Client-Identity", "CN=root"), ("X-Client-Identity", said)]
        assert await ask_rpc(one, headers) == status
        assert await ask_v1(one, headers) == status


@pytest.mark.parametrize("method", ["SendMessage", "SendStreamingMessage"])
async def test_webhook_in_a_send_request_requires_the_scope_to_set_webhooks(
    rig: Rig, method: str
) -> None:
    one = await rig.start(clients=[SENDER])
    config = {"url": "https://hooks.example.com/a"}
    message = one.message("hello", taskPushNotificationConfig=config)
    refused: Answer = (await one.call("sender-key", method, message)).json()
    assert refused["error"]["data"][0]["reason"] == "PERMISSION_DENIED", refused
    assert rig.counted() == 0
    assert (await one.send("sender-key")).status_code == 200


async def test_task_that_may_not_be_read_by_a2a_may_not_be_read_by_v1(rig: Rig) -> None:
    one = await rig.start(clients=[SENDER])
    sent: Answer = (await one.send("sender-key", "chunks 1")).json()
    task = sent["result"]["task"]["id"]
    headers = {"Authorization": "Bearer sender-key"}
    assert (await one.call("sender-key", "GetTask", {"id": task})).status_code == 403
    assert (await one.http.get(f"/v1/tasks/{task}", headers=headers)).status_code == 403


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/turns", {"text": "hello"}),
        ("/v1/subagents", {"text": "hello"}),
        ("/v1/jobs", {"title": "j", "agents": ["echo"], "inputs": ["hello"]}),
        ("/v1/schedules", {"title": "s", "text": "hello", "everyS": 60}),
    ],
)
async def test_caller_that_may_not_send_sends_in_no_way(
    rig: Rig, path: str, body: JsonObject
) -> None:
    one = await rig.start(clients=[READER])
    headers = {"Authorization": "Bearer reader-key"}
    named = body if "agents" in body else {**body, "agent": "echo"}
    refused = await one.http.post(path, json=named, headers=headers)
    assert (refused.status_code, refused.json()["operation"]) == (403, "SendMessage")
    assert rig.counted() == 0


async def test_caller_that_may_not_cancel_cancels_in_no_way(rig: Rig) -> None:
    scopes = ["a2a:call", "tasks:read", "tasks:write"]
    sender = {**SENDER, "scopes": scopes}
    one = await rig.start(clients=[sender, {"name": "free", "scopes": scopes}])

    async def begin(who: str) -> dict[str, str]:
        """The path of each change that stops a run, with that of a run in progress."""
        headers = {"Authorization": f"Bearer {who}-key"}
        turn = {"agent": "echo", "text": "silent"}
        begun = (await one.http.post("/v1/turns", json=turn, headers=headers)).json()
        batch = {"title": "j", "agents": ["echo"], "inputs": ["silent"]}
        job = (await one.http.post("/v1/jobs", json=batch, headers=headers)).json()["job"]["jobId"]
        spawn = await one.http.post("/v1/subagents", json=turn, headers=headers)
        subagent = spawn.json()["subagent"]["subagentId"]

        async def is_running() -> bool:
            read = await one.http.get(f"/v1/jobs/{job}/results", headers=headers)
            return bool(read.json()["items"][0].get("taskStatus") == "running")

        await wait_until(is_running, 20, "the item of the job is running")
        return {
            "cancel": f"/v1/tasks/{begun['taskId']}/cancel",
            "fail": f"/v1/tasks/{begun['taskId']}/fail",
            "interrupt": f"/v1/sessions/{begun['sessionId']}/interrupt",
            "policy": f"/v1/threads/{begun['threadId']}/queue/policy",
            "job": f"/v1/jobs/{job}/cancel",
            "subagent": f"/v1/subagents/{subagent}/close",
        }

    bodies = {"fail": {"code": "c", "reason": "r"}, "policy": {"policy": "interrupt"}}
    for name, path in (await begin("sender")).items():
        refused = await one.http.post(
            path, json=bodies.get(name, {}), headers={"Authorization": "Bearer sender-key"}
        )
        told = (refused.status_code, refused.json().get("operation"))
        assert told == (403, "CancelTask"), (name, refused.text)
    assert rig.peer.count("CancelTask") == 0
    for name, path in (await begin("free")).items():
        if name != "interrupt":  # nothing is left to interrupt
            done = await one.http.post(
                path, json=bodies.get(name, {}), headers={"Authorization": "Bearer free-key"}
            )
            assert done.is_success or done.json()["code"] == "unsupported_operation", done.text
    await wait_until(lambda: rig.peer.count("CancelTask") >= 2, 20, "runs are stopped")
