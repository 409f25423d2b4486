"""The stream of a tenant's tasks: changed rows of all owners, for overseers only."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING, Final, cast

import httpx
import orjson
import pytest
from starlette.applications import Starlette

from passerelle.channels.services import StreamName
from passerelle.core.ids import ALL_SHARDS, shard_of
from passerelle.core.ports.log import StreamKind, StreamRef
from passerelle.core.principal import name_tenant_lists
from passerelle.delegation.verification.walk import verify_store
from passerelle.gateway.http.v1 import make_v1_routes
from passerelle.runtime.common.clock import SystemIds
from passerelle.store import keys
from tests.integration.callers.test_list_streams import ask, follow, has, open_list, post, start
from tests.integration.callers.test_oversight import OUT, FixedAuthenticator, list_reads
from tests.integration.channels.test_connection import HELLO
from tests.support.engine import ask as ask_engine
from tests.support.raw_channel import open_channel
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from tests.integration.callers.rig import Answer, Instance, Rig

pytestmark = pytest.mark.anyio
STREAM: Final = "tasks:tenant"
SCOPES: Final = ["a2a:call", "tasks:read", "tasks:write", "channels:connect"]
CLIENTS: Final[list[dict[str, object]]] = [
    {"name": "ada", "scopes": SCOPES},
    {"name": "bob", "scopes": SCOPES},
    {"name": "eve", "scopes": ["tasks:oversee", "channels:connect"]},
    {"name": "far", "scopes": ["tasks:oversee"], "may_call": ["another"]},
]
TENANT: Final = name_tenant_lists("default")
HEAD: Final = keys.head(StreamRef(StreamKind.TENANT_TASKS, TENANT))


def contains(task: str, found: list[Answer]) -> bool:
    """Whether the events contain a row of the task."""
    return any(row["name"] == task for row in found)


def is_watched(rig: Rig) -> set[bool]:
    """Returns the distinct values over all shards: does the shard record followers of a tenant?"""
    return {ask_engine(rig.url, "HEXISTS", keys.meta(one), "watched") == 1 for one in ALL_SHARDS}


async def list_all(one: Instance) -> list[Answer]:
    answer = await ask(one, "eve", "/v1/tasks?owners=all&pageSize=100")
    assert answer.is_success, answer.text
    rows: list[Answer] = answer.json()["tasks"]
    return rows


async def test_overseer_gets_the_rows_of_every_owner(rig: Rig) -> None:
    one, two = await rig.start(clients=CLIENTS), await rig.start(clients=CLIENTS)
    cursor, state = await open_list(one, STREAM, "eve")
    assert state["rows"] == []
    silent = await start(one, "silent", "ada")
    others = {await start(two, f"echo {number}", "bob") for number in range(4)}
    others |= {await start(one, f"echo {number}", "ada") for number in range(4)}
    _, bodies = await follow(
        one,
        cursor,
        lambda found: (
            all(has("completed", task)(found) for task in others)
            and any(row.get("name") == silent for row in found)
        ),
        STREAM,
        "eve",
    )
    await one.call("ada-key", "CancelTask", {"id": silent})
    # A follower that has seen nothing gets each row once, in its current state, at the other instance.
    _, rows = await follow(two, cursor, has("cancelled", silent), STREAM, "eve")
    by_name = {row["name"]: row["row"] for row in rows}
    assert len(by_name) == len(rows) == 9
    assert {row["name"] for row in bodies} == by_name.keys()
    listed = {row["taskId"]: row for row in await list_all(one)}
    assert by_name == listed
    assert {row["owner"] for row in listed.values()} == {"ada", "bob"}
    state = (await open_list(two, STREAM, "eve"))[1]
    assert {row["taskId"]: row for row in state["rows"]} == listed
    reads = [read["payload"]["of"] for read in await list_reads(one, "eve")]
    assert reads == ["tenant:default"], "one read for each hour"
    assert (await verify_store(one.gateway.store, rebuild=True)).problems == []


async def test_a_row_written_while_a_follower_subscribes_is_seen(rig: Rig) -> None:
    one, two = await rig.start(clients=CLIENTS), await rig.start(clients=CLIENTS)

    async def send(number: int) -> str:
        return await start((one, two)[number % 2], f"echo {number}", ("ada", "bob")[number % 2])

    sending = [asyncio.create_task(send(number)) for number in range(24)]
    await asyncio.wait(sending, return_when=asyncio.FIRST_COMPLETED)
    cursor, state = await open_list(two, STREAM, "eve")
    sent = [await one for one in sending]
    seen = {row["taskId"]: row["status"] for row in state["rows"]}

    def has_all(found: list[Answer]) -> bool:
        seen.update({row["name"]: row["row"]["status"] for row in found})
        return all(seen.get(task) == "completed" for task in sent)

    await follow(two, cursor, has_all, STREAM, "eve")


async def test_no_notes_are_stored_for_a_tenant_without_followers(rig: Rig) -> None:
    one = await rig.start(clients=CLIENTS)
    cursor, _ = await open_list(one, "tasks", "ada")
    task = await start(one, "echo 1", "ada")
    await follow(one, cursor, has("completed", task))
    assert is_watched(rig) == {False}
    assert ask_engine(rig.url, "EXISTS", HEAD) == 0
    cursor, state = await open_list(one, STREAM, "eve")
    assert is_watched(rig) == {True}
    assert [row["taskId"] for row in state["rows"]] == [task]
    # After a long time without followers the notes end, in every shard.
    store = one.gateway.store
    now_ms = store.clock.read_ms(shard_of(TENANT))
    assert TENANT in await store.inboxes.list_followers(ALL_SHARDS)
    assert await store.inboxes.trim_notes(TENANT, now_ms + 600_000, now_ms) == 1
    assert is_watched(rig) == {False}
    gap = await ask(
        await rig.start(clients=CLIENTS), "eve", f"/v1/streams/{STREAM}/events?after={cursor}"
    )
    assert (gap.status_code, gap.json()["why"]) == (410, "epoch")


async def test_caller_without_the_scope_to_oversee_is_refused_without_details(rig: Rig) -> None:
    one = await rig.start(clients=CLIENTS)
    cursor, _ = await open_list(one, STREAM, "eve")
    task = await start(one, "echo 1", "ada")
    cursor_after, _ = await follow(one, cursor, has("completed", task), STREAM, "eve")
    for path in ("snapshot", "events", f"events?after={cursor}"):
        refused = await ask(one, "ada", f"/v1/streams/{STREAM}/{path}")
        assert (refused.status_code, refused.json()["code"]) == (403, "forbidden")
    names = ("tasks:default", "tasks:globex", f"tasks:{TENANT}", "jobs:tenant", "tasks:")
    bodies = {
        (await ask(one, "eve", f"/v1/streams/{name}/events")).content.replace(name.encode(), b"S")
        for name in (*names, "nobody")
    }
    assert len(bodies) == 1
    # Rows of a hidden agent or of another tenant are not sent.
    begun, state = await open_list(one, STREAM, "far")
    assert (state["rows"], begun) == ([], cursor_after)
    seen = await ask(one, "far", f"/v1/streams/{STREAM}/events?after={cursor}")
    assert seen.json()["events"] == []
    name, parts = StreamName("tasks", "tenant"), one.gateway.parts
    grant = await parts.grants.grant(OUT, name, full=False)
    more = await start(one, "echo 2", "bob")
    await follow(one, cursor, has("completed", more), STREAM, "eve")
    theirs = await one.gateway.store.log.read_head(grant.stream)
    assert theirs is not None
    assert (theirs.sequence, theirs.epoch == cursor.partition(".")[0]) == (0, False)
    state = dict(await parts.snapshots.read_snapshot(OUT, name, grant))
    assert state == {"rows": [], "more": False}
    async with open_channel(str(one.http.base_url).rstrip("/")) as channel:
        await channel.send({**HELLO, "token": "bob-key"})
        await channel.send({"t": "sub", "s": STREAM, "from": "snap"})
        refusal = await channel.expect("error", of="sub")
        assert (refusal["s"], refusal["code"]) == (STREAM, "forbidden")


async def test_a_transferred_task_continues_in_its_row(rig: Rig) -> None:
    one = await rig.start(clients=CLIENTS)
    cursor, _ = await open_list(one, STREAM, "eve")
    task = await start(one, "silent", "ada")
    cursor, _ = await follow(one, cursor, partial(contains, task), STREAM, "eve")
    await post(one, "ada", f"/v1/tasks/{task}/give", {"owner": "bob"})
    _, rows = await follow(one, cursor, bool, STREAM, "eve")
    assert [row["row"]["owner"] for row in rows] == ["bob"]
    assert not any(row.get("gone") for row in rows)


async def test_notes_lost_in_a_failover_are_a_gap(rig: Rig) -> None:
    one = await rig.start(clients=CLIENTS)
    cursor, _ = await open_list(one, STREAM, "eve")
    task = await start(one, "silent", "ada")
    cursor, _ = await follow(one, cursor, partial(contains, task), STREAM, "eve")
    # The tenant's shard loses its mark for the shard of this task.
    taken = f"{shard_of(task).tag}+"
    assert ask_engine(rig.url, "HDEL", keys.marks(shard_of(TENANT)), taken) == 1
    await one.call("ada-key", "CancelTask", {"id": task})

    async def is_gap() -> bool:
        gap = await ask(one, "eve", f"/v1/streams/{STREAM}/events?after={cursor}")
        return gap.status_code == 410

    await wait_until(is_gap, 20, "the stream has a new epoch")
    cursor, state = await open_list(one, STREAM, "eve")
    assert [(row["taskId"], row["status"]) for row in state["rows"]] == [(task, "cancelled")]
    more = await start(one, "echo 2", "bob")
    await follow(one, cursor, has("completed", more), STREAM, "eve")


async def test_each_tenant_has_its_own_changes(rig: Rig) -> None:
    one = await rig.start(clients=CLIENTS)
    cursor, _ = await open_list(one, STREAM, "eve")
    name, parts = StreamName("tasks", "tenant"), one.gateway.parts
    grant = await parts.grants.grant(OUT, name, full=False)
    assert len(read_watched(rig).split()) == 2
    routes = make_v1_routes(parts.service, FixedAuthenticator(OUT), SystemIds())
    transport = httpx.ASGITransport(Starlette(routes=routes))
    async with httpx.AsyncClient(transport=transport, base_url="http://gateway") as http:
        made = await http.post("/v1/tasks", json={"agent": "echo", "objective": "theirs"})
        theirs = str(made.json()["task"]["taskId"])
    log = one.gateway.store.log

    async def is_noted() -> bool:
        return bool(await log.read_page(grant.stream, 0))

    await wait_until(is_noted, 20, "their change is noted")
    mine = await start(one, "echo 1", "ada")
    _, rows = await follow(one, cursor, has("completed", mine), STREAM, "eve")
    assert {row["name"] for row in rows} == {mine}
    noted = [orjson.loads(each.data)["name"] for each in await log.read_page(grant.stream, 0)]
    assert set(noted) == {theirs}
    state = await parts.snapshots.read_snapshot(OUT, name, grant)
    assert [(row["taskId"], row["owner"]) for row in cast("Answer", state)["rows"]] == [
        (theirs, OUT.id)
    ]


def read_watched(rig: Rig) -> str:
    """Returns the tenants that every shard records as followed."""
    [found] = {
        cast("bytes", ask_engine(rig.url, "HGET", keys.meta(shard), "watched"))
        for shard in ALL_SHARDS
    }
    return found.decode()
