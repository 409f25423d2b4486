"""Callers of A2A 0.3: raw requests as in its specification, and the SDK's clients of that version."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import cast

import httpx
import orjson
import pytest
from a2a.client.transports.base import ClientTransport
from a2a.compat.v0_3.jsonrpc_transport import CompatJsonRpcTransport
from a2a.compat.v0_3.rest_transport import CompatRestTransport
from a2a.helpers import new_text_message
from a2a.types import a2a_pb2 as a2a
from a2a.utils.errors import TaskNotCancelableError, TaskNotFoundError

from passerelle.a2a_mapping.extensions import PERMISSION, RESUME
from passerelle.core.wire.json import JsonObject
from tests.integration.a2a.rig import OWNER, Answer, Event, Rig, read_events

pytestmark = pytest.mark.anyio
OLDER = {"Authorization": f"Bearer {OWNER}"}


@pytest.fixture
async def http(rig: Rig) -> AsyncGenerator[httpx.AsyncClient]:
    """A caller that sends no version."""
    async with httpx.AsyncClient(base_url=rig.url, headers=OLDER, timeout=20) as client:
        yield client


def message(text: str, **members: object) -> JsonObject:
    body = {"kind": "message", "role": "user", "messageId": "m-1", **members}
    return cast("JsonObject", body | {"parts": [{"kind": "text", "text": text}]})


async def call(http: httpx.AsyncClient, method: str, params: JsonObject) -> Answer:
    body = {"jsonrpc": "2.0", "id": "a", "method": method, "params": params}
    answer = (await http.post("/agents/echo", json=body)).json()
    assert (answer["jsonrpc"], answer["id"]) == ("2.0", "a")
    return cast("Answer", answer)


async def collect(http: httpx.AsyncClient, method: str, params: JsonObject) -> list[Event]:
    body = {"jsonrpc": "2.0", "id": "a", "method": method, "params": params}
    async with http.stream("POST", "/agents/echo", json=body) as response:
        return [event async for event in read_events(response)]


@pytest.mark.requirement("LT-15", "LT-16")
@pytest.mark.parametrize("method", ["message/stream", "tasks/resubscribe"])
async def test_error_of_a_stream_is_its_only_event(http: httpx.AsyncClient, method: str) -> None:
    # Clients of 0.3 refuse an error as JSON by its content type, and show nothing of it.
    named: JsonObject = {"message": message("go", taskId="none")}
    params: JsonObject = named if method == "message/stream" else {"id": "none"}
    body = {"jsonrpc": "2.0", "id": "a", "method": method, "params": params}
    answer = await http.post("/agents/echo", json=body)
    assert answer.headers["content-type"] == "text/event-stream"
    name, _, data = answer.text.removesuffix("\n\n").partition(": ")
    shown = orjson.loads(data)
    assert (name, shown["id"]) == ("data", "a")
    assert (shown["error"]["code"], "none" in shown["error"]["message"]) == (-32001, True)
    current = await http.post("/agents/echo", json=body, headers={"A2A-Version": "1.0"})
    assert current.headers["content-type"] == "application/json"


@pytest.mark.requirement("LT-15", "LT-16")
@pytest.mark.parametrize("method", ["message/send", "message.send"])
async def test_answer_is_a_task_in_the_form_of_0_3(
    rig: Rig, http: httpx.AsyncClient, method: str
) -> None:
    params: JsonObject = {"message": message("report a sailboat")}
    task = (await call(http, method, params))["result"]
    assert task["kind"] == "task"
    assert task["status"]["state"] == "completed"
    assert task["history"][0]["kind"] == "message"
    assert task["history"][0]["role"] == "user"
    kinds = {part["kind"] for artifact in task["artifacts"] for part in artifact["parts"]}
    assert kinds <= {"text", "file", "data"}
    assert (await call(http, "tasks/get", {"id": task["id"]}))["result"] == task


async def test_answer_without_a_task_is_a_message(rig: Rig, http: httpx.AsyncClient) -> None:
    answer = await call(http, "message/send", {"message": message("message hi")})
    assert answer["result"]["kind"] == "message"
    assert answer["result"]["parts"] == [{"kind": "text", "text": "hi"}]
    rest = await http.post("/agents/echo/v1/message:send", json={"message": message("message hi")})
    assert rest.headers["content-type"] == "application/json"
    assert rest.json()["message"]["content"] == [{"text": "hi"}]


async def test_stream_ends_where_the_agent_asks_and_goes_on_with_the_answer(
    rig: Rig, http: httpx.AsyncClient
) -> None:
    events = await collect(http, "message/stream", {"message": message("ask which?")})
    last = events[-1].result
    assert (last["kind"], last["status"]["state"]) in {
        ("status-update", "input-required"),
        ("task", "input-required"),
    }
    assert last.get("final", True) is True
    task = last.get("taskId") or last["id"]
    more = await collect(http, "message/stream", {"message": message("blue", taskId=task)})
    assert more[0].result["kind"] == "task"
    assert more[-1].result["status"]["state"] == "completed"
    finals = [event.result.get("final") for event in more if "final" in event.result]
    assert not any(finals[:-1])


async def test_http_json_streams_have_the_form_of_the_protobuf(
    rig: Rig, http: httpx.AsyncClient
) -> None:
    body = {"message": {"messageId": "m", "role": "ROLE_USER", "content": [{"text": "chunks 2"}]}}
    async with http.stream("POST", "/agents/echo/v1/message:stream", json=body) as response:
        events = [orjson.loads(event.data) async for event in read_events(response)]
    assert list(events[0]) == ["task"]
    pieces = [event["artifactUpdate"] for event in events if "artifactUpdate" in event]
    assert len(pieces) == 2
    assert events[-1]["statusUpdate"]["final"] is True
    assert events[-1]["statusUpdate"]["status"]["state"] == "TASK_STATE_COMPLETED"


async def test_extensions_are_accepted_by_the_older_header_as_well(
    rig: Rig, http: httpx.AsyncClient
) -> None:
    body = {"jsonrpc": "2.0", "id": 1, "method": "message/send"}
    response = await http.post(
        "/agents/echo",
        json={**body, "params": {"message": message("hello")}},
        headers={"X-A2A-Extensions": f"{PERMISSION},{RESUME}"},
    )
    assert response.headers["x-a2a-extensions"] == f"{PERMISSION}, {RESUME}"
    assert RESUME in response.json()["result"]["metadata"]


async def test_errors_name_their_class_for_clients_of_0_3(
    rig: Rig, http: httpx.AsyncClient
) -> None:
    response = await http.get("/agents/echo/v1/tasks/t")
    assert (response.status_code, response.json()["type"]) == (404, "TaskNotFoundError")
    assert response.json()["message"] == response.json()["error"]["message"]
    answer = await call(http, "tasks/pushNotificationConfig/list", {"id": "t"})
    assert answer["error"]["code"] == -32003
    response = await http.delete("/agents/echo/v1/tasks/t/pushNotificationConfigs/c")
    assert response.json()["type"] == "PushNotificationNotSupportedError"


async def test_extended_card_has_the_shape_of_0_3(rig: Rig, http: httpx.AsyncClient) -> None:
    card = (await call(http, "agent/getAuthenticatedExtendedCard", {}))["result"]
    assert card["protocolVersion"].startswith("0.3")
    assert card["url"].startswith(rig.url)
    assert (await http.get("/agents/echo/v1/card")).json() == card


@pytest.fixture(params=[CompatJsonRpcTransport, CompatRestTransport])
def client(
    rig: Rig,
    http: httpx.AsyncClient,
    request: pytest.FixtureRequest,
) -> ClientTransport:
    """The SDK's client of 0.3."""
    return cast("ClientTransport", request.param(http, None, f"{rig.url}/agents/echo"))


def ask(text: str, **ids: str) -> a2a.SendMessageRequest:
    sent = new_text_message(text, role=a2a.Role.ROLE_USER)
    for name, value in ids.items():
        setattr(sent, name, value)
    return a2a.SendMessageRequest(message=sent)


async def test_client_of_0_3_talks_in_turns(rig: Rig, client: ClientTransport) -> None:
    asked = (await client.send_message(ask("ask which?"))).task
    assert asked.status.state == a2a.TaskState.TASK_STATE_INPUT_REQUIRED
    done = (await client.send_message(ask("blue", task_id=asked.id))).task
    assert done.status.state == a2a.TaskState.TASK_STATE_COMPLETED
    assert done.artifacts[0].parts[0].text == "answer: blue"
    assert await client.get_task(a2a.GetTaskRequest(id=done.id)) == done
    with pytest.raises(TaskNotFoundError):
        await client.get_task(a2a.GetTaskRequest(id="task_00nothing"))
    with pytest.raises(TaskNotCancelableError):
        await client.cancel_task(a2a.CancelTaskRequest(id=done.id))


async def test_client_of_0_3_streams_subscribes_and_cancels(
    rig: Rig, client: ClientTransport
) -> None:
    frames = [frame async for frame in client.send_message_streaming(ask("chunks 3"))]
    assert frames[0].HasField("task")
    assert sum(frame.HasField("artifact_update") for frame in frames) == 3
    assert frames[-1].status_update.status.state == a2a.TaskState.TASK_STATE_COMPLETED
    at_once: JsonObject = {"returnImmediately": True}
    sent = rig.message("silent", configuration=at_once)
    task_id = (await rig.call("SendMessage", sent))["task"]["id"]
    seen: list[a2a.StreamResponse] = []
    async for frame in client.subscribe(a2a.SubscribeToTaskRequest(id=task_id)):
        if not seen:
            await client.cancel_task(a2a.CancelTaskRequest(id=task_id))
        seen.append(frame)
    assert seen[0].task.id == task_id
    last = seen[-1]
    state = last.task.status.state or last.status_update.status.state
    assert state == a2a.TaskState.TASK_STATE_CANCELED
