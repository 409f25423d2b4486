"""A task is transferred to another owner, over HTTP, A2A and channels, in a whole gateway (TEV-5)."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final, cast

import httpx
import pytest

from passerelle.core.ids import parse_facade
from passerelle.core.ports.log import StreamKind, StreamRef
from passerelle.delegation.verification.walk import verify_store
from tests.integration.channels.test_connection import HELLO
from tests.support.raw_channel import open_channel
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from passerelle.core.wire.json import Json, JsonObject
    from tests.integration.callers.rig import Answer, Instance, Rig

pytestmark = [pytest.mark.anyio, pytest.mark.requirement("TEV-5")]
SCOPES: Final = [
    "a2a:call",
    "tasks:read",
    "tasks:write",
    "channels:connect",
    "approvals:read",
    "approvals:decide",
]
CLIENTS: Final[list[dict[str, object]]] = [
    {"name": "ada", "scopes": SCOPES},
    {"name": "bob", "scopes": SCOPES},
    {"name": "cat", "scopes": SCOPES, "may_call": ["another"]},
]
TASK_NOT_FOUND: Final = -32001
UNKNOWN_TASK: Final = "task_0000000000000000000000000000"


async def send_silent(one: Instance) -> tuple[str, str]:
    """Starts a task of Ada's that its agent works on; returns the task and its session."""
    answer = (await one.send("ada-key", "silent", returnImmediately=True)).json()
    task = str(answer["result"]["task"]["id"])
    record = await get(one, "ada", f"/v1/tasks/{task}")
    return task, str(record.json()["sessionId"])


async def get(one: Instance, who: str, path: str) -> httpx.Response:
    return await one.http.get(path, headers={"Authorization": f"Bearer {who}-key"})


async def transfer(
    one: Instance, who: str, task: str, owner: str = "bob", **headers: str
) -> httpx.Response:
    sent = {"Authorization": f"Bearer {who}-key", **headers}
    return await one.http.post(f"/v1/tasks/{task}/give", json={"owner": owner}, headers=sent)


async def ask_a2a(one: Instance, who: str, method: str, **params: Json) -> Answer:
    return cast("Answer", (await one.call(f"{who}-key", method, params)).json())


async def list_a2a(one: Instance, who: str) -> tuple[list[str], int]:
    page = (await ask_a2a(one, who, "ListTasks"))["result"]
    return [task["id"] for task in page["tasks"]], page["totalSize"]


async def test_transferred_task_belongs_to_the_new_owner_on_every_edge_at_once(rig: Rig) -> None:
    one = await rig.start(clients=CLIENTS)
    task, _ = await send_silent(one)
    read = await get(one, "ada", f"/v1/tasks/{task}")
    stale = await transfer(one, "ada", task, **{"If-Match": '"1"'})
    assert stale.status_code == httpx.codes.PRECONDITION_FAILED
    for stranger in ("bob", "cat"):
        assert (await transfer(one, stranger, task)).status_code == httpx.codes.NOT_FOUND
    for unfit in ("cat", "nobody"):
        refused = await transfer(one, "ada", task, unfit)
        assert refused.status_code == httpx.codes.BAD_REQUEST, refused.text
    wish = {"If-Match": read.headers["etag"], "Idempotency-Key": "g-1"}
    given = await transfer(one, "ada", task, **wish)
    assert given.status_code == httpx.codes.OK, given.text
    again = await transfer(one, "ada", task, **wish)
    assert again.json() == {**given.json(), "repeated": True}
    assert given.headers["etag"] == f'"{given.json()["version"]}"'
    assert ((await list_a2a(one, "ada"))[0], (await list_a2a(one, "bob"))[0]) == ([], [task])
    missed: list[list[object]] = []
    for name in (task, UNKNOWN_TASK):
        answers: list[object] = [
            str(await ask_a2a(one, "ada", method, id=name)).replace(name, "it")
            for method in ("GetTask", "CancelTask", "SubscribeToTask")
        ]
        response = await get(one, "ada", f"/v1/tasks/{name}")
        answers.append((response.status_code, response.text.replace(name, "it")))
        missed.append(answers)
    assert missed[0] == missed[1]
    assert (await ask_a2a(one, "bob", "GetTask", id=task))["result"]["id"] == task
    cancelled = await ask_a2a(one, "bob", "CancelTask", id=task)
    assert cancelled["result"]["status"]["state"] == "TASK_STATE_CANCELED"
    assert (await verify_store(one.gateway.store, rebuild=True)).problems == []


async def test_transfer_ends_webhooks_subscriptions_and_calls_of_the_old_owner(rig: Rig) -> None:
    one = await rig.start(clients=CLIENTS, webhooks={"allow": ["http://127.0.0.1:9"]})
    task, session = await send_silent(one)
    stream = StreamRef(StreamKind.SESSION, session)
    config = {"taskId": task, "id": "mine", "url": "http://127.0.0.1:9/push"}
    made = await ask_a2a(one, "ada", "CreateTaskPushNotificationConfig", **config)
    assert made["result"]["id"] == "mine", made
    headers = {"Authorization": "Bearer ada-key"}
    for name in (f"task:{task}", f"session:{session}"):
        hook = f"/v1/streams/{name}/webhooks/{name.partition(':')[0]}"
        body = {"url": "http://127.0.0.1:9/stream"}
        set_hook = await one.http.put(hook, json=body, headers=headers)
        assert set_hook.is_success, set_hook.text
    assert len(await one.gateway.store.targets.read(stream)) == 3
    waiting = asyncio.create_task(ask_again(one, task))
    await wait_until(lambda: rig.counted() == 2, 30, "the agent has the further message")
    url = str(one.http.base_url).rstrip("/")
    async with open_channel(url) as channel:
        names = (f"session:{session}", f"task:{task}")
        subs: list[JsonObject] = [{"s": name, "from": "start"} for name in names]
        await channel.send({**HELLO, "token": "ada-key", "caps": [], "subs": [*subs]})
        for name in names:
            await channel.expect("live", s=name)
        assert (await transfer(one, "ada", task)).is_success
        for name in names:
            assert (await channel.expect("unsub", s=name))["code"] == "forbidden"
    assert (await waiting)["error"]["code"] == TASK_NOT_FOUND
    assert await one.gateway.store.targets.read(stream) == {}
    configs = await ask_a2a(one, "bob", "ListTaskPushNotificationConfigs", taskId=task)
    assert configs["result"].get("configs", []) == []


async def test_turn_under_way_ends_for_its_sender_and_continues_for_the_new_owner(
    rig: Rig,
) -> None:
    one = await rig.start(clients=CLIENTS)
    rig.peer.hold()
    waiting = asyncio.create_task(one.send("ada-key", "hello"))
    await wait_until(lambda: rig.counted() == 1, 30, "the agent has the message")
    (session,) = rig.list_sessions()
    listed = (await get(one, "ada", f"/v1/tasks?sessionId={session}")).json()["tasks"]
    task = str(listed[0]["taskId"])
    assert (await transfer(one, "ada", task)).is_success
    assert (await waiting).json()["error"]["code"] == TASK_NOT_FOUND
    rig.peer.release_all()

    async def is_done() -> bool:
        answer = await ask_a2a(one, "bob", "GetTask", id=task)
        seen = answer.get("result", {}).get("status", {}).get("state")
        return bool(seen == "TASK_STATE_COMPLETED")

    await wait_until(is_done, 30, "the new owner sees what the agent has done")
    done = (await ask_a2a(one, "bob", "GetTask", id=task))["result"]
    assert done["artifacts"][0]["parts"][0]["text"] == "hello"
    assert ((await list_a2a(one, "ada"))[0], (await list_a2a(one, "bob"))[0]) == ([], [task])
    assert (await verify_store(one.gateway.store, rebuild=True)).problems == []


async def ask_again(one: Instance, task: str) -> Answer:
    """Sends a further message of Ada's and returns its response."""
    message = one.message("silent")["message"]
    further = {**cast("JsonObject", message), "taskId": task, "messageId": "m-further"}
    return await ask_a2a(one, "ada", "SendMessage", message=further)


async def test_question_of_a_transferred_task_is_in_the_inbox_of_the_new_owner(rig: Rig) -> None:
    one = await rig.start(clients=CLIENTS)
    body = {"agent": "echo", "objective": "ask which one"}
    headers = {"Authorization": "Bearer ada-key"}
    created = await one.http.post("/v1/tasks", json=body, headers=headers)
    task = created.json()["task"]["taskId"]
    assert parse_facade(task) is not None
    assert (await transfer(one, "ada", task)).is_success
    bob = {"Authorization": "Bearer bob-key"}
    started = await one.http.post(f"/v1/tasks/{task}/start", json={}, headers=bob)
    assert started.is_success, started.text

    async def read_pending(who: str) -> list[Answer]:
        return cast("list[Answer]", (await get(one, who, "/v1/approvals")).json()["pending"])

    async def is_asked() -> bool:
        return [view["taskId"] for view in await read_pending("bob")] == [task]

    await wait_until(is_asked, 30, "the question is in the new owner's inbox")
    assert await read_pending("ada") == []
    refused = await transfer(one, "bob", task, "ada")
    assert refused.status_code == httpx.codes.CONFLICT
    assert refused.json()["why"] == "open_question"
    further = {"text": "the left one", "taskId": task, "agent": "echo"}
    answered = await one.http.post("/v1/turns", json=further, headers=bob)
    assert answered.is_success, answered.text

    async def has_ended() -> bool:
        record = cast("Answer", (await get(one, "bob", f"/v1/tasks/{task}")).json())
        return str(record["status"]) == "completed"

    await wait_until(has_ended, 30, "the task of the new owner ends")
    assert ((await list_a2a(one, "ada"))[0], (await list_a2a(one, "bob"))[0]) == ([], [task])
