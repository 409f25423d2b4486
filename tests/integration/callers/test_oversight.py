"""Oversight: a reader of a tenant sees what others own in it, each read is recorded, and it changes nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import httpx
import pytest
from starlette.applications import Starlette

from passerelle.channels.services import StreamName
from passerelle.core.errors import NotFound
from passerelle.core.event_type import EventType
from passerelle.core.principal import AccessScope, Principal
from passerelle.delegation.verification.walk import verify_store
from passerelle.gateway.http.v1 import make_v1_routes
from passerelle.runtime.common.clock import SystemIds
from passerelle.runtime.records.places import name_home
from tests.integration.channels.test_connection import HELLO
from tests.support.raw_channel import open_channel
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from passerelle.core.credentials import Credentials
    from passerelle.core.wire.json import JsonObject
    from tests.integration.callers.rig import Answer, Instance, Rig

pytestmark = pytest.mark.anyio
MEMBER: Final = ["a2a:call", "tasks:read", "tasks:write"]
CLIENTS: Final[list[dict[str, object]]] = [
    {"name": "ada", "scopes": MEMBER},
    {"name": "bob", "scopes": MEMBER},
    {"name": "eve", "scopes": ["tasks:oversee", "channels:connect"]},
    {"name": "far", "scopes": ["tasks:oversee"], "may_call": ["another"]},
]
UNKNOWN: Final = tuple(f"{word}_{'0' * 28}" for word in ("task", "se", "th"))
MODELS: Final = (
    "",
    "/summary",
    "/attempts",
    "/artifacts",
    "/graph",
    "/delivery",
    "/routing",
    "/subagents",
    "/context",
    "/objects",
    "/explain",
)


async def get(one: Instance, who: str, path: str) -> httpx.Response:
    return await one.http.get(path, headers={"Authorization": f"Bearer {who}-key"})


async def start_silent(one: Instance) -> tuple[str, str, str]:
    """Starts a task of Ada's; returns the task, its session and its thread."""
    task = str(
        (await one.send("ada-key", "silent", returnImmediately=True)).json()["result"]["task"]["id"]
    )
    record = (await get(one, "ada", f"/v1/tasks/{task}")).json()
    return task, str(record["sessionId"]), str(record["threadId"])


def list_paths(task: str, session: str, thread: str) -> list[str]:
    return [
        *(f"/v1/tasks/{task}{model}" for model in MODELS),
        f"/v1/tasks?sessionId={session}",
        f"/v1/sessions/{session}",
        f"/v1/sessions/{session}/tasks",
        f"/v1/threads/{thread}",
        f"/v1/threads/{thread}/context",
        f"/v1/archive/{session}@1",
        f"/v1/streams/task:{task}/snapshot",
        f"/v1/streams/session:{session}/snapshot",
    ]


async def list_reads(one: Instance, who: str, tenant: str = "default") -> list[Answer]:
    """Returns the reads of others' data that the reader's home session records."""
    events = await one.read_session(name_home(Principal(who, tenant)))
    return [event for event in events if event["type"] == EventType.HISTORY_WINDOW_LOADED]


async def test_overseer_reads_all_that_the_owner_reads(rig: Rig) -> None:
    one = await rig.start(clients=CLIENTS)
    names = await start_silent(one)
    for path in list_paths(*names):
        mine, seen = await get(one, "ada", path), await get(one, "eve", path)
        assert mine.status_code == httpx.codes.OK, (path, mine.text)
        assert seen.status_code == httpx.codes.OK, (path, seen.text)
        assert seen.json().keys() == mine.json().keys(), path
        refused = await get(one, "bob", path)
        assert refused.status_code == httpx.codes.NOT_FOUND, path
    reads = await list_reads(one, "eve")
    assert [read["payload"]["of"] for read in reads] == [names[0], names[1]]
    assert {read["payload"]["owner"] for read in reads} == {Principal("ada").key}
    assert await list_reads(one, "ada") == await list_reads(one, "bob") == []
    assert (await verify_store(one.gateway.store, rebuild=True)).problems == []


async def test_a_read_is_recorded_once_per_hour_over_all_instances(rig: Rig) -> None:
    one, two = await rig.start(clients=CLIENTS), await rig.start(clients=CLIENTS)
    task, _, _ = await start_silent(one)
    for instance in (one, two, one, two):
        assert (await get(instance, "eve", f"/v1/tasks/{task}")).is_success
    assert len(await list_reads(one, "eve")) == 1


class FixedAuthenticator:
    """Authenticates every request as one principal. Clients of the settings all belong to the tenant ``default``."""

    def __init__(self, principal: Principal) -> None:
        self.principal = principal

    async def authenticate(self, credentials: Credentials) -> Principal:
        del credentials
        return self.principal


OUT: Final = Principal("owner", "globex", "person", frozenset(AccessScope), serves=None)
"""A principal of another tenant."""


async def test_task_of_another_tenant_equals_an_unknown_one_in_each_byte(rig: Rig) -> None:
    one = await rig.start(clients=CLIENTS)
    named = await start_silent(one)
    routes = make_v1_routes(one.gateway.parts.service, FixedAuthenticator(OUT), SystemIds())
    transport = httpx.ASGITransport(Starlette(routes=routes))
    async with httpx.AsyncClient(transport=transport, base_url="http://gateway") as http:
        for real, unreal in zip(list_paths(*named), list_paths(*UNKNOWN), strict=True):
            if not real.startswith("/v1/streams"):
                compare(await http.get(real), await http.get(unreal), named)
    for name in (StreamName("task", named[0]), StreamName("session", named[1])):
        with pytest.raises(NotFound):
            await one.gateway.parts.grants.grant(OUT, name, full=True)
    assert await list_reads(one, OUT.id, OUT.tenant) == []


async def test_task_of_a_hidden_agent_equals_an_unknown_one_in_each_byte(rig: Rig) -> None:
    one = await rig.start(clients=CLIENTS)
    named = await start_silent(one)
    for real, unreal in zip(list_paths(*named), list_paths(*UNKNOWN), strict=True):
        compare(await get(one, "far", real), await get(one, "far", unreal), named)
    assert await list_reads(one, "far") == []


def compare(found: httpx.Response, missed: httpx.Response, named: tuple[str, str, str]) -> None:
    seen_text = found.text
    for name, other in zip(named, UNKNOWN, strict=True):
        seen_text = seen_text.replace(name, other)
    assert (found.status_code, seen_text) == (missed.status_code, missed.text), found.url
    assert found.status_code == httpx.codes.NOT_FOUND, found.url


async def test_overseer_changes_nothing_and_reads_no_personal_session(rig: Rig) -> None:
    one = await rig.start(clients=CLIENTS)
    task, session, _ = await start_silent(one)
    headers = {"Authorization": "Bearer eve-key"}
    for verb in ("cancel", "pause", "resume", "start", "retry", "complete"):
        refused = await one.http.post(f"/v1/tasks/{task}/{verb}", json={}, headers=headers)
        assert refused.status_code == httpx.codes.FORBIDDEN, verb
    hook = await one.http.put(
        f"/v1/streams/session:{session}/webhooks/mine",
        json={"url": "https://example.org/"},
        headers=headers,
    )
    assert hook.status_code in {httpx.codes.FORBIDDEN, httpx.codes.NOT_FOUND}, hook.text
    await get(one, "eve", f"/v1/tasks/{task}")
    whole = [*CLIENTS, {"name": "zoe", "scopes": ["tasks:oversee"]}]
    two = await rig.start(clients=whole)
    assert await list_reads(two, "eve")
    personal = await get(two, "zoe", f"/v1/sessions/{name_home(Principal('eve'))}")
    assert personal.status_code == httpx.codes.NOT_FOUND


async def test_overseer_follows_the_stream_of_a_task_of_another_owner(rig: Rig) -> None:
    one = await rig.start(clients=CLIENTS)
    task, session, _ = await start_silent(one)
    url = str(one.http.base_url).rstrip("/")
    async with open_channel(url) as channel:
        names = (f"session:{session}", f"task:{task}")
        subs: list[JsonObject] = [{"s": name, "from": "start"} for name in names]
        await channel.send({**HELLO, "token": "eve-key", "caps": [], "subs": [*subs]})
        for name in names:
            await channel.expect("live", s=name)
    assert {read["payload"]["of"] for read in await list_reads(one, "eve")} == {session, task}


async def list_all(one: Instance, who: str, query: str = "") -> list[Answer]:
    """Returns all pages of the tenant's task list."""
    found: list[Answer] = []
    token = ""
    while True:
        path = f"/v1/tasks?owners=all&pageSize=2&pageToken={token}{query}"
        answer = await get(one, who, path if token else path.replace("&pageToken=", ""))
        assert answer.status_code == httpx.codes.OK, answer.text
        found += answer.json()["tasks"]
        token = answer.json()["nextPageToken"]
        if not token:
            return found


async def test_overseer_lists_the_tasks_of_all_owners(rig: Rig) -> None:
    one = await rig.start(clients=CLIENTS)
    made = [
        str(
            (await one.send(f"{who}-key", text, returnImmediately=True)).json()["result"]["task"][
                "id"
            ]
        )
        for who, text in (
            ("ada", "silent"),
            ("bob", "silent"),
            ("ada", "silent"),
            ("bob", "silent"),
        )
    ]

    async def are_listed() -> bool:
        return [task["taskId"] for task in await list_all(one, "eve")] == made[::-1]

    await wait_until(are_listed, 20, "the relay has delivered all rows")
    owners = [task["owner"] for task in await list_all(one, "eve")]
    assert owners == ["bob", "ada", "bob", "ada"]
    assert await list_all(one, "eve", "&agent=nobody") == await list_all(one, "far") == []
    assert len(await list_all(one, "eve", "&status=completed")) == 0
    mine = (await get(one, "ada", "/v1/tasks")).json()["tasks"]
    assert [task["taskId"] for task in mine] == [made[2], made[0]]
    assert not any("owner" in task for task in mine)
    for refused in ("ada", "bob"):
        answer = await get(one, refused, "/v1/tasks?owners=all")
        assert answer.status_code == httpx.codes.FORBIDDEN
        assert "tasks:oversee" in answer.text
    assert [read["payload"]["of"] for read in await list_reads(one, "eve")] == ["tenant:default"]
    routes = make_v1_routes(one.gateway.parts.service, FixedAuthenticator(OUT), SystemIds())
    transport = httpx.ASGITransport(Starlette(routes=routes))
    async with httpx.AsyncClient(transport=transport, base_url="http://gateway") as http:
        for _ in range(2):
            assert (await http.get("/v1/tasks?owners=all")).json()["tasks"] == []


async def cancel(one: Instance, who: str, task: str, **body: str) -> httpx.Response:
    headers = {"Authorization": f"Bearer {who}-key"}
    return await one.http.post(f"/v1/tasks/{task}/cancel", json=body, headers=headers)


@pytest.mark.parametrize(
    "rules", [[], [{"name": "stops", "effect": "allow", "when": "true", "about": ["commands"]}]]
)
async def test_operator_cancels_a_task_of_another_owner(
    rig: Rig, rules: list[dict[str, object]]
) -> None:
    operators: list[dict[str, object]] = [
        {"name": "ops", "scopes": ["tasks:operate"]},
        {"name": "off", "scopes": ["tasks:operate"], "may_call": ["another"]},
    ]
    policy = {"policy": {"rules": rules}} if rules else {}
    one = await rig.start(clients=[*CLIENTS, *operators], **policy)
    task, session, _ = await start_silent(one)
    for who in ("off", "bob"):
        answer = await cancel(one, who, task)
        assert answer.json()["outcome"] == "not_found", who
        assert answer.text == (await cancel(one, who, UNKNOWN[0])).text
    routes = make_v1_routes(one.gateway.parts.service, FixedAuthenticator(OUT), SystemIds())
    transport = httpx.ASGITransport(Starlette(routes=routes))
    async with httpx.AsyncClient(transport=transport, base_url="http://gateway") as http:
        paths = (f"/v1/tasks/{name}/cancel" for name in (task, UNKNOWN[0]))
        seen_text, missed = [(await http.post(path, json={})).text for path in paths]
        assert seen_text == missed
    assert (await get(one, "ops", f"/v1/tasks/{task}")).status_code == httpx.codes.FORBIDDEN
    assert (await get(one, "ada", f"/v1/tasks/{task}")).json()["status"] != "cancelled"
    done = await cancel(one, "ops", task, reason="runs in circles", propagation="subtree")
    assert done.json() == {"outcome": "requested", "task": {}}, done.text

    async def is_stopped() -> bool:
        return str((await get(one, "ada", f"/v1/tasks/{task}")).json()["status"]) == "cancelled"

    await wait_until(is_stopped, 20, "the agent has stopped")
    events = await one.read_session(session)
    [requested] = [event for event in events if event["type"] == EventType.TASK_CANCEL_REQUESTED]
    assert (requested["payload"]["actor"], requested["payload"]["reason"]) == (
        "ops",
        "runs in circles",
    )
    assert (await cancel(one, "ops", task)).json()["outcome"] == "already_cancelled"
    assert (await verify_store(one.gateway.store, rebuild=True)).problems == []


@pytest.mark.parametrize("binding", ["http", "channel"])
async def test_overseers_device_moves_no_position_of_a_device_of_the_same_name(
    rig: Rig, binding: str
) -> None:
    connected = [*MEMBER, "channels:connect"]
    one = await rig.start(clients=[{"name": "ada", "scopes": connected}, CLIENTS[2]])
    _, session, thread = await start_silent(one)
    streams = [f"session:{session}", f"inputs:{session}", f"messages:{thread}"]
    tops = {name: await read_top(one, "ada", name) for name in streams}
    if binding == "http":
        for name, top in tops.items():
            assert (await acknowledge(one, "eve", name, top)).status_code == httpx.codes.OK
            assert (await read_top(one, "eve", name, "acked")) == top
    else:
        # Each connection is a generation of its channel, which is newer than the owner's only one.
        for _ in range(3):
            async with open_channel(str(one.http.base_url).rstrip("/")) as channel:
                subs: list[JsonObject] = [{"s": name} for name in streams]
                hello = {**HELLO, "token": "eve-key", "caps": [], "device": "laptop"}
                await channel.send({**hello, "subs": [*subs]})
                for name, top in tops.items():
                    await channel.expect("live", s=name)
                    await channel.send({"t": "ack", "a": {name: top}})
                await channel.send({"t": "hb", "n": 1})
                await channel.expect("hb", n=1)
    for name, top in tops.items():
        assert await read_top(one, "ada", name, "snap") == top
        acked = await acknowledge(one, "ada", name, top)
        assert acked.status_code == httpx.codes.OK, acked.text
        assert await read_top(one, "ada", name, "acked") == top
    links = (await get(one, "ada", f"/v1/sessions/{session}/channels")).json()["devices"]
    assert [link["device"] for link in links] == ["laptop"] * len(streams), "only the owner's"


async def read_top(one: Instance, who: str, stream: str, mode: str = "snap") -> str:
    """Where a device continues; asserts from which position."""
    path, headers = f"/v1/streams/{stream}/reconnect", {"Authorization": f"Bearer {who}-key"}
    found = await one.http.post(path, json={"device": "laptop"}, headers=headers)
    assert (found.status_code, found.json().get("mode")) == (httpx.codes.OK, mode), found.text
    return str(found.json()["cursor"])


async def acknowledge(one: Instance, who: str, stream: str, cursor: str) -> httpx.Response:
    path, headers = f"/v1/streams/{stream}/ack", {"Authorization": f"Bearer {who}-key"}
    return await one.http.post(path, json={"device": "laptop", "cursor": cursor}, headers=headers)
