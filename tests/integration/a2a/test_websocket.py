"""A2A over WebSocket: the SDK's client over the project's transport, and errors that only a socket can have."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any, cast

import orjson
import pytest
from a2a.client import Client, ClientConfig, ClientFactory
from a2a.types import (
    GetTaskRequest,
    Message,
    Part,
    Role,
    SendMessageRequest,
    SubscribeToTaskRequest,
    TaskState,
)
from a2a.utils.errors import TaskNotFoundError
from google.protobuf.json_format import ParseDict
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import InvalidStatus
from websockets.typing import Origin, Subprotocol

from passerelle.a2a_mapping.extensions import INTERFACES, RESUME
from passerelle.client.a2a_websocket import BINDING, bind_headers
from passerelle.gateway.a2a_socket.edge import MOST_CALLS
from passerelle.gateway.settings.callers import GrantSettings
from tests.integration.callers.rig import Instance, Rig, run_rig
from tests.support.asking import ask_leave
from tests.support.engine import Server, engine_server, started_legs
from tests.support.scripted_tasks import Turn
from tests.support.waiting import wait_until

__all__ = ["engine_server", "started_legs"]

pytestmark = pytest.mark.anyio

Answer = dict[str, Any]
CLIENTS: list[dict[str, object]] = [{"name": "ada"}, {"name": "bob", "may_call": ["other"]}]
AGENTS = [{"name": "other", "url": "http://127.0.0.1:9"}]


@pytest.fixture
async def rig(engine_server: Server, tmp_path: Path, anyio_backend: str) -> AsyncGenerator[Rig]:
    async with run_rig(engine_server.url, tmp_path) as started:
        yield started


async def start(rig: Rig, **settings: object) -> Instance:
    agents = [{"name": "echo", "url": rig.peer.url}, *AGENTS]
    return await rig.start(clients=[dict(one) for one in CLIENTS], agents=agents, **settings)


def find_url(instance: Instance, agent: str = "echo") -> str:
    base = str(instance.http.base_url).rstrip("/").replace("http", "ws", 1)
    return f"{base}/agents/{agent}/ws"


@asynccontextmanager
async def open_socket(
    instance: Instance,
    key: str | None = "ada-key",
    agent: str = "echo",
    origin: str | None = None,
    **headers: str,
) -> AsyncGenerator[ClientConnection]:
    shown = {} if key is None else {"Authorization": f"Bearer {key}"}
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    async with connect(
        find_url(instance, agent),
        additional_headers={**shown, **named},
        subprotocols=[Subprotocol("a2a.v1")],
        origin=Origin(origin) if origin else None,
        proxy=None,
        compression=None,
        max_size=None,
    ) as socket:
        yield socket


def write(text: str, number: int = 1) -> Answer:
    return {"message": {"messageId": f"m-{number}", "role": "ROLE_USER", "parts": [{"text": text}]}}


def dump(body: Answer) -> str:
    """JSON of any depth."""
    return json.dumps(body, ensure_ascii=False)


async def send_call(socket: ClientConnection, rpc_id: object, method: str, params: Answer) -> None:
    frame = {"jsonrpc": "2.0", "id": rpc_id, "method": method, "params": params}
    await socket.send(orjson.dumps(frame).decode())


async def leave_stream(socket: ClientConnection, rpc_id: object) -> None:
    frame = {"jsonrpc": "2.0", "method": "cancelStream", "params": {"id": rpc_id}}
    await socket.send(orjson.dumps(frame).decode())


async def collect(socket: ClientConnection, ends: int) -> list[Answer]:
    """The frames up to the last one of as many ends of streams."""
    frames: list[Answer] = []
    while sum("streamEnd" in one for one in frames) < ends:
        frames.append(await receive(socket))
    return frames


async def receive(socket: ClientConnection) -> Answer:
    async with asyncio.timeout(15):
        return cast("Answer", orjson.loads(await socket.recv()))


async def receive_close(socket: ClientConnection) -> int:
    async with asyncio.timeout(15):
        await socket.wait_closed()
    return socket.close_code or 0


async def open_client(instance: Instance, *, streaming: bool = True) -> Client:
    card = await instance.http.get(
        "/agents/echo/.well-known/agent-card.json", headers={"A2A-Extensions": INTERFACES}
    )
    from a2a.types import AgentCard

    config = ClientConfig(
        streaming=streaming, supported_protocol_bindings=[BINDING], use_client_preference=True
    )
    factory = ClientFactory(config)
    factory.register(BINDING, bind_headers({"Authorization": "Bearer ada-key"}))
    return factory.create(ParseDict(card.json(), AgentCard(), ignore_unknown_fields=True))


def compose(text: str, message_id: str = "sdk-1") -> SendMessageRequest:
    message = Message(message_id=message_id, role=Role.ROLE_USER, parts=[Part(text=text)])
    return SendMessageRequest(message=message)


async def test_the_sdk_factory_finds_the_binding_on_the_card_and_uses_it(rig: Rig) -> None:
    client = await open_client(await start(rig))
    events = [event async for event in client.send_message(compose("chunks 3"))]
    assert events[-1].status_update.status.state == TaskState.TASK_STATE_COMPLETED
    assert sum(event.HasField("artifact_update") for event in events) == 3
    task_id = events[-1].status_update.task_id
    task = await client.get_task(GetTaskRequest(id=task_id))
    assert task.status.state == TaskState.TASK_STATE_COMPLETED
    with pytest.raises(TaskNotFoundError):
        await client.get_task(GetTaskRequest(id="no-such-task"))
    with pytest.raises(TaskNotFoundError):
        await anext(client.subscribe(SubscribeToTaskRequest(id="no-such-task")))
    await client.close()


async def test_an_answer_of_any_length_reaches_the_client_and_ends_no_other_call(rig: Rig) -> None:
    async def write_much(turn: Turn) -> None:
        for number in range(6):
            await turn.artifact("y" * 1_000_000, append=number > 0, last=number == 5)
        await turn.status("COMPLETED")

    rig.peer.on("much", write_much)
    client = await open_client(await start(rig))
    sent = [event async for event in client.send_message(compose("much"))]
    slow = client.send_message(compose("slow 1", "sdk-2"))
    begun = await anext(slow)
    task = await client.get_task(GetTaskRequest(id=sent[-1].status_update.task_id))
    assert sum(len(part.text) for part in task.artifacts[0].parts) == 6_000_000
    rest = [begun, *[event async for event in slow]]
    assert rest[-1].status_update.status.state == TaskState.TASK_STATE_COMPLETED
    await client.close()


@pytest.mark.parametrize("method", ["GetTask", "SubscribeToTask"])
async def test_large_tasks_that_a_caller_reads_draw_on_the_memory_budget(
    rig: Rig, tmp_path: Path, method: str
) -> None:
    """Over HTTP they are written in pieces; a frame has to be in memory."""

    async def write_much(turn: Turn) -> None:
        for number in range(12):
            await turn.artifact("y" * 1_000_000, append=number > 0)
        await turn.status("WORKING", "written")
        await asyncio.Event().wait()

    rig.peer.on("much", write_much)
    blobs = str(tmp_path / "blobs")
    instance = await start(rig, memory={"budget_bytes": 64 * 1024 * 1024}, blobs=blobs)
    async with open_socket(instance) as socket:
        await send_call(socket, 1, "SendStreamingMessage", write("much"))
        task = (await receive(socket))["result"]["task"]["id"]
        while "written" not in str(await receive(socket)):
            pass
        for number in (2, 3):
            await send_call(socket, number, method, {"id": task})
        frames = [await receive(socket), await receive(socket)]
        (refused,) = [frame["error"] for frame in frames if "error" in frame]
        assert refused["data"][0]["reason"] == "RATE_LIMITED"
        (shown,) = [frame["result"] for frame in frames if "result" in frame]
        artifacts = shown.get("task", shown)["artifacts"]
        assert sum(len(part["text"]) for part in artifacts[0]["parts"]) == 12_000_000
        await send_call(socket, 4, method, {"id": task})
        assert "result" in await receive(socket)


async def test_calls_on_one_socket_are_answered_by_their_ids(rig: Rig) -> None:
    instance = await start(rig)
    async with open_socket(instance) as socket:
        await send_call(socket, "slow", "SendStreamingMessage", write("silent"))
        first = await receive(socket)
        assert first["id"] == "slow"
        task = first["result"]["task"]
        for number in range(2, 6):
            await send_call(socket, number, "SendMessage", write("hello", number))
        received = {frame["id"]: frame for frame in [await receive(socket) for _ in range(4)]}
        assert set(received) == {2, 3, 4, 5}
        await send_call(socket, 6, "GetTask", {"id": task["id"]})
        assert (await receive(socket))["result"]["id"] == task["id"]


async def test_leaving_a_stream_does_not_end_the_task(rig: Rig) -> None:
    instance = await start(rig)
    async with open_socket(instance) as socket:
        await send_call(socket, 1, "SendStreamingMessage", write("silent"))
        task = (await receive(socket))["result"]["task"]
        await leave_stream(socket, 1)
        while "streamEnd" not in (ended := await receive(socket)):
            pass
        assert ended == {"jsonrpc": "2.0", "id": 1, "streamEnd": True}
        await send_call(socket, 2, "GetTask", {"id": task["id"]})
        state = (await receive(socket))["result"]["status"]["state"]
        assert state in {"TASK_STATE_SUBMITTED", "TASK_STATE_WORKING"}


@pytest.mark.parametrize("method", ["SendStreamingMessage", "SendMessage"])
async def test_calls_that_are_left_before_their_answer_begins_end_once_and_keep_their_task(
    rig: Rig, method: str
) -> None:
    instance = await start(rig)
    numbers = range(1, 9)
    async with open_socket(instance) as socket:
        for number in numbers:
            await send_call(socket, number, method, write("silent", number))
            await leave_stream(socket, number)
        ended = [one for one in await collect(socket, len(numbers)) if "streamEnd" in one]
        assert sorted(one["id"] for one in ended) == list(numbers)
        await send_call(socket, "last", "ListTasks", {})
        assert (await receive(socket))["id"] == "last"
    sent = {f"m-{number}" for number in numbers}
    await wait_until(
        lambda: {str(one["messageId"]) for one in rig.peer.messages} == sent,
        15,
        "the agent gets each message",
    )


async def test_calls_that_a_client_gives_up_leave_room_for_others(rig: Rig) -> None:
    rig.peer.on("never", wait_forever)
    client = await open_client(await start(rig), streaming=False)
    for number in range(MOST_CALLS + 1):
        name = f"n-{number}"
        call = asyncio.ensure_future(anext(client.send_message(compose("never", name))))
        await await_message(rig, name)
        call.cancel()
        with suppress(asyncio.CancelledError):
            await call
    async with asyncio.timeout(15):
        (answer,) = [event async for event in client.send_message(compose("hello", "last"))]
    assert answer.task.status.state == TaskState.TASK_STATE_COMPLETED
    await client.close()


async def await_message(rig: Rig, name: str) -> None:
    def has_message() -> bool:
        return name in str(rig.peer.messages)

    await wait_until(has_message, 15, f"the agent gets message {name}")


async def wait_forever(_turn: Turn) -> None:
    await asyncio.Event().wait()


async def test_a_reader_resumes_with_the_cursor_of_its_last_item(rig: Rig) -> None:
    instance = await start(rig)
    resumes = {"a2a-service-parameters": {"A2A-Extensions": RESUME}}
    async with open_socket(instance) as socket:
        params = {**write("chunks 4"), "metadata": resumes}
        await send_call(socket, 1, "SendStreamingMessage", params)
        items: list[Answer] = []
        while "streamEnd" not in (frame := await receive(socket)):
            items.append(frame)
        assert all("cursor" in item for item in items)
        task = items[0]["result"]["task"]["id"]
        asked = {"id": task, "after": items[1]["cursor"], "metadata": resumes}
        await send_call(socket, 2, "SubscribeToTask", asked)
        again: list[Answer] = []
        while "streamEnd" not in (frame := await receive(socket)):
            again.append(frame)
    assert again[0].pop("resumed") == "true"
    assert [item["result"] for item in again] == [item["result"] for item in items[2:]]


async def test_without_the_extension_an_item_has_only_its_result(rig: Rig) -> None:
    instance = await start(rig)
    async with open_socket(instance) as socket:
        await send_call(socket, 1, "SendStreamingMessage", write("chunks 1"))
        assert set(await receive(socket)) == {"jsonrpc", "id", "result"}


@pytest.mark.parametrize(
    ("key", "agent", "headers", "status"),
    [
        (None, "echo", {}, 401),
        ("wrong", "echo", {}, 401),
        ("bob-key", "echo", {}, 404),
        ("ada-key", "nobody", {}, 404),
        ("ada-key", "echo", {"A2A_Version": "0.3"}, 400),
    ],
)
async def test_a_handshake_is_checked_before_it_is_accepted(
    rig: Rig, key: str | None, agent: str, headers: dict[str, str], status: int
) -> None:
    instance = await start(rig)
    with pytest.raises(InvalidStatus) as refused:
        async with open_socket(instance, key, agent, **headers):
            pass
    assert refused.value.response.status_code == status


async def test_a_page_of_another_origin_gets_no_socket(rig: Rig) -> None:
    instance = await start(rig)
    with pytest.raises(InvalidStatus):
        async with open_socket(instance, origin="https://evil.example"):
            pass


async def test_malformed_request_is_refused_and_the_socket_stays(rig: Rig) -> None:
    instance = await start(rig)
    async with open_socket(instance) as socket:
        await socket.send("no json")
        assert (await receive(socket))["error"]["code"] == -32700
        await send_call(socket, 1, "NoSuchMethod", {})
        assert (await receive(socket))["error"]["code"] == -32601
        await send_call(socket, 2, "SendStreamingMessage", write("silent"))
        await receive(socket)
        await send_call(socket, 2, "GetTask", {"id": "x"})
        while "error" not in (frame := await receive(socket)):
            pass
        assert frame["error"]["code"] == -32600
        await send_call(socket, 3, "GetTask", {"id": "x"})
        assert (await receive(socket))["error"]["code"] == -32001


@pytest.mark.parametrize(
    ("params", "code"),
    [
        ({"metadata": {"a2a-service-parameters": {"A2A-Extensions": "€"}}}, -32602),
        ({"metadata": {"a2a-service-parameters": {"Idempotency-Key": "ключ"}}}, -32602),
        ({"metadata": {"a2a-service-parameters": {"Idempotency-Key": 5}}}, -32602),
        ({"metadata": {"a2a-service-parameters": ["A2A-Extensions"]}}, -32602),
        ({"after": "€"}, -32602),
        ({"after": "x", "deep": json.loads("[" * 300 + "]" * 300)}, -32700),
        ({"deep": json.loads("[" * 70 + "]" * 70)}, -32700),
    ],
)
async def test_service_parameter_that_no_header_could_have_ends_no_other_call(
    rig: Rig, params: Answer, code: int
) -> None:
    instance = await start(rig)
    async with open_socket(instance) as socket:
        await send_call(socket, 1, "SendStreamingMessage", write("slow 1"))
        body = {**write("hello", 2), **params}
        await socket.send(
            f'{{"jsonrpc":"2.0","id":2,"method":"SendMessage","params":{dump(body)}}}'
        )
        frames: list[Answer] = []
        while not frames or "streamEnd" not in frames[-1]:
            frames.append(await receive(socket))
    (refused,) = [frame for frame in frames if "error" in frame]
    assert (refused["id"], refused["error"]["code"]) == (2, code)
    assert rig.peer.texts == ["slow 1"]


async def test_frames_are_text_and_as_long_as_bodies_at_most(rig: Rig) -> None:
    instance = await start(rig)
    async with open_socket(instance) as socket:
        await send_call(socket, 1, "SendMessage", write("x" * 500_000))
        assert (await receive(socket))["result"]["task"]["status"][
            "state"
        ] == "TASK_STATE_COMPLETED"
        await socket.send("x" * 1_100_000)
        assert await receive_close(socket) == 1009
    async with open_socket(instance) as socket:
        await socket.send(b"binary")
        assert await receive_close(socket) == 1003


async def test_a_call_of_a_removed_caller_ends_the_socket(rig: Rig) -> None:
    instance = await start(rig)
    async with open_socket(instance) as socket:
        fewer = instance.settings.model_copy(update={"clients": ()})
        instance.access.reload(fewer)
        await send_call(socket, 1, "GetTask", {"id": "x"})
        assert "error" in await receive(socket)
        assert await receive_close(socket) == 4401


@pytest.mark.parametrize(("lost", "code"), [("key", 4401), ("agent", 4503)])
async def test_an_open_stream_of_a_caller_without_access_ends_the_socket(
    rig: Rig, lost: str, code: int
) -> None:
    instance = await start(rig)
    async with open_socket(instance) as socket:
        await send_call(socket, 1, "SendStreamingMessage", write("silent"))
        await receive(socket)
        clients = [
            client.model_copy(update={"may_call": (GrantSettings(agent="other"),)})
            for client in instance.settings.clients
        ]
        kept = () if lost == "key" else tuple(clients)
        instance.access.reload(instance.settings.model_copy(update={"clients": kept}))
        while "error" not in await receive(socket):
            pass
        assert await receive_close(socket) == code


@pytest.mark.requirement("CHN-7", "VAL-4", "I6")
async def test_text_and_a_broken_socket_leave_a_question_open(rig: Rig) -> None:
    at = await start(rig)
    rig.peer.next(ask_leave())
    async with open_socket(at) as socket:
        await send_call(socket, 1, "SendMessage", write("go"))
        task = (await receive(socket))["result"]["task"]
        said = write("yes, pay-1: pay", 2)
        said["message"]["taskId"] = task["id"]
        await send_call(socket, 2, "SendMessage", said)
        answered = (await receive(socket))["result"]["task"]
        assert answered["status"]["state"] == "TASK_STATE_INPUT_REQUIRED"
        await send_call(socket, 3, "SubscribeToTask", {"id": task["id"]})
        assert (await receive(socket))["id"] == 3
        socket.transport.abort()
    async with open_socket(at) as socket:
        await send_call(socket, 4, "GetTask", {"id": task["id"]})
        found = (await receive(socket))["result"]
    assert found["status"]["state"] == "TASK_STATE_INPUT_REQUIRED"
    assert [one for one in rig.peer.messages if one.get("taskId")] == []
