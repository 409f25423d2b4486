"""Tenants of an agent: three ways to name one, separate tasks, and the tenant that the agent receives."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, cast

import grpc.aio
import httpx
import pytest
from a2a.client import ClientConfig, create_client
from a2a.helpers import new_text_message
from a2a.types import a2a_pb2 as a2a

from passerelle.core.principal import AccessScope
from passerelle.gateway.edges import make_edges
from passerelle.gateway.grpc.face import GrpcFace
from passerelle.gateway.grpc.server import start_grpc
from passerelle.peers.grpc.methods import V1

if TYPE_CHECKING:
    from passerelle.core.wire.json import JsonObject
    from tests.integration.callers.rig import Answer, Instance, Rig

pytestmark = pytest.mark.anyio
ADA: Final = {"name": "ada", "may_call": ["echo"]}
TENANTS: Final = {"tenants": ["acme", "Globex-7"]}
KEY: Final = {"Authorization": "Bearer ada-key", "A2A-Version": "1.0"}


async def post(one: Instance, path: str, body: JsonObject) -> httpx.Response:
    return await one.http.post(f"/agents/echo{path}", json=body, headers=KEY)


async def send(one: Instance, tenant: str, text: str = "hello") -> Answer:
    body = {**one.message(text), "tenant": tenant}
    return cast("Answer", (await one.call("ada-key", "SendMessage", body)).json())


async def list_ids(one: Instance, path: str) -> list[str]:
    page = (await one.http.get(f"/agents/echo{path}/tasks", headers=KEY)).json()
    return [task["id"] for task in page["tasks"]]


async def test_tenant_is_named_by_path_or_params_and_its_tasks_are_its_own(rig: Rig) -> None:
    one = await rig.start(clients=[ADA], agent=TENANTS)
    task = (await send(one, "acme"))["result"]["task"]["id"]
    assert (await one.http.get(f"/agents/echo/acme/tasks/{task}", headers=KEY)).json()["id"] == task
    rpc: JsonObject = {"jsonrpc": "2.0", "id": 1, "method": "GetTask", "params": {"id": task}}
    assert (await post(one, "/acme", rpc)).json()["result"]["id"] == task
    assert (await post(one, "/acme/", rpc)).json()["result"]["id"] == task
    by_path = (await post(one, "/Globex-7/message:send", one.message("hello"))).json()["task"]["id"]
    for elsewhere in ("", "/Globex-7"):
        answer = await one.http.get(f"/agents/echo{elsewhere}/tasks/{task}", headers=KEY)
        assert answer.status_code == httpx.codes.NOT_FOUND
    assert await list_ids(one, "/acme") == [task]
    assert await list_ids(one, "/Globex-7") == [by_path]
    assert await list_ids(one, "") == []


async def test_unknown_tenant_or_one_that_contradicts_the_path_is_refused(rig: Rig) -> None:
    one = await rig.start(clients=[ADA], agent=TENANTS)
    for path, tenant in (("", "initech"), ("/acme", "Globex-7"), ("", 7)):
        body: JsonObject = {**one.message("hello"), "tenant": tenant}
        answer = await post(one, f"{path}/message:send", body)
        assert answer.status_code == httpx.codes.BAD_REQUEST
        assert '"field":"tenant"' in answer.text
    assert (await post(one, "/initech/message:send", one.message("x"))).status_code == 404
    assert rig.counted() == 0


async def test_permission_for_the_agent_covers_its_tenants_with_the_same_operations(
    rig: Rig,
) -> None:
    reader = {"name": "reader", "may_call": [{"agent": "echo", "operations": ["ListTasks"]}]}
    stranger = {"name": "stranger", "may_call": ["other"]}
    other = {"name": "other", "url": rig.peer.url}
    echo = {"name": "echo", "url": rig.peer.url, **TENANTS}
    one = await rig.start(clients=[reader, stranger], agents=[echo, other])
    for key, read, sent in (("reader", 200, 403), ("stranger", 404, 404)):
        headers = {"Authorization": f"Bearer {key}-key", "A2A-Version": "1.0"}
        listed = await one.http.get("/agents/echo/acme/tasks", headers=headers)
        assert listed.status_code == read
        path = "/agents/echo/acme/message:send"
        answer = await one.http.post(path, json=one.message("hello"), headers=headers)
        assert answer.status_code == sent
        assert "acme" not in answer.text or key == "reader"


async def test_agent_is_called_at_the_interface_of_the_tenant(rig: Rig) -> None:
    interface = cast("list[JsonObject]", rig.peer.card["supportedInterfaces"])[0]
    rig.peer.card = {
        **rig.peer.card,
        "supportedInterfaces": [
            {**interface, "tenant": "initech"},
            interface,
            {**interface, "tenant": "acme"},
        ],
    }
    one = await rig.start(clients=[ADA], agent=TENANTS)
    for tenant in ("acme", "Globex-7"):
        await send(one, tenant)
    called = [request.params.get("tenant") for request in rig.peer.requests]
    assert called == ["acme", None]


@pytest.mark.parametrize("binding", ["JSONRPC", "HTTP+JSON"])
async def test_unmodified_client_follows_the_card_of_a_tenant(rig: Rig, binding: str) -> None:
    one = await rig.start(clients=[ADA], agent=TENANTS)
    base = str(one.http.base_url).rstrip("/")
    card = (await one.http.get("/agents/echo/acme/.well-known/agent-card.json")).json()
    latest = [face for face in card["supportedInterfaces"] if face["protocolVersion"] == "1.0"]
    listed = [face for face in latest if face["protocolBinding"] in {"JSONRPC", "HTTP+JSON"}]
    assert {face["tenant"] for face in listed} == {"acme"}
    assert {face["url"] for face in listed} == {f"{base}/agents/echo"}
    public = (await one.http.get("/agents/echo/.well-known/agent-card.json")).text
    assert "acme" not in public
    async with httpx.AsyncClient(headers=KEY, timeout=20) as http:
        config = ClientConfig(
            streaming=False, httpx_client=http, supported_protocol_bindings=[binding]
        )
        async with await create_client(f"{base}/agents/echo/acme", config) as client:
            message = new_text_message("hello", role=a2a.Role.ROLE_USER)
            request = a2a.SendMessageRequest(message=message)
            (answer,) = [answer async for answer in client.send_message(request)]
    assert await list_ids(one, "/acme") == [answer.task.id]


async def test_grpc_names_agent_and_tenant_together(rig: Rig) -> None:
    one = await rig.start(clients=[ADA], agent=TENANTS)
    task = (await send(one, "acme"))["result"]["task"]["id"]
    face = make_edges(one.gateway, one.settings, one.access).face
    server = await start_grpc(GrpcFace(face.operations, face.parts, None), "127.0.0.1", 0)
    metadata = tuple((name.lower(), value) for name, value in KEY.items())
    async with grpc.aio.insecure_channel(f"127.0.0.1:{server.port}") as channel:
        row = V1.rows["GetTask"]
        get_task = channel.unary_unary(
            f"/{V1.name}/GetTask",
            request_serializer=row.request.SerializeToString,
            response_deserializer=row.response.FromString,
        )
        found = await get_task(a2a.GetTaskRequest(tenant="echo/acme", id=task), metadata=metadata)
        assert isinstance(found, a2a.Task)
        assert found.id == task
        with pytest.raises(grpc.aio.AioRpcError) as failed:
            await get_task(a2a.GetTaskRequest(tenant="echo", id=task), metadata=metadata)
    assert failed.value.code() is grpc.StatusCode.NOT_FOUND
    await server.stop()


async def test_tenant_is_read_paused_and_muted_over_http_under_its_listed_name(
    rig: Rig,
) -> None:
    """``/v1/agents`` lists the name; before, no path matched it."""
    ada = {**ADA, "kind": "person", "scopes": [*AccessScope]}
    one = await rig.start(clients=[ada], agent=TENANTS)
    listed = (await one.http.get("/v1/agents", headers=KEY)).json()["agents"]
    assert "echo/acme" in [agent["name"] for agent in listed]
    for name in ("echo%2Facme", "echo/acme"):
        health = await one.http.get(f"/v1/agents/{name}/health", headers=KEY)
        assert (health.status_code, health.json()["name"]) == (200, "echo/acme")
        for verb, state in (("pause", "paused"), ("drain", "draining"), ("resume", "active")):
            answer = await one.http.post(f"/v1/agents/{name}/{verb}", json={}, headers=KEY)
            answered = answer.json()
            assert (answer.status_code, answered["name"], answered["state"]) == (200, "echo", state)
        for method in ("PUT", "DELETE"):
            answer = await one.http.request(method, f"/v1/mutes/{name}", headers=KEY)
            assert (answer.status_code, answer.json()["peer"]) == (200, "echo")
    for path in ("/health", "/pause", "/drain", "/resume"):
        method = "GET" if path == "/health" else "POST"
        answer = await one.http.request(method, f"/v1/agents/echo%2Finitech{path}", headers=KEY)
        assert (answer.status_code, answer.json().get("kind")) == (404, "agent"), path
