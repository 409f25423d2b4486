"""Every read gives the same bytes before a session has left the engine and after, to a gateway that saw neither.

Reads of ``/v1`` say besides that it has left, and nothing else.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import orjson
import pytest

from passerelle.core.ids import ALL_SHARDS
from passerelle.core.wire.json import JsonObject
from passerelle.delegation.verification.walk import verify_store
from passerelle.runtime.common.clock import SystemIds
from passerelle.runtime.common.sealer import make_sealer, read_keys
from passerelle.runtime.common.secret import Secret
from passerelle.store.keys import SCHEMA
from passerelle.store.store import Store, StoreSettings
from tests.integration.callers.rig import KEY, Instance, Rig, open_rig
from tests.integration.devices.asking import ADA, BOB, bearer
from tests.stores.dump import find_dump, load_dump
from tests.stores.make import fill, settle
from tests.support.engine import Server, ask, engine_server, started_legs
from tests.support.waiting import wait_until

__all__ = ["engine_server", "started_legs"]
pytestmark = pytest.mark.anyio
AWAY = "http://127.0.0.1:9"
LATER_MS = 1 << 45


@pytest.fixture(params=["lived", *range(2, SCHEMA + 1)])
async def rig(
    request: pytest.FixtureRequest, engine_server: Server, tmp_path: Path, anyio_backend: str
) -> AsyncGenerator[Rig]:
    """A store that a gateway has just filled, or one that an earlier version has."""
    ask(engine_server.url, "FLUSHALL")
    if request.param != "lived":
        load_dump(engine_server.url, tmp_path / "blobs", find_dump(request.param))
    async with open_rig(engine_server.url, tmp_path) as opened:
        if request.param == "lived":
            at = await opened.start(clients=[ADA, BOB])
            await fill(at)
            await settle(at)
        yield opened


async def begin(rig: Rig) -> Instance:
    return await rig.start(clients=[ADA, BOB], agents=[{"name": "echo", "url": AWAY}])


@dataclass(frozen=True, slots=True)
class Reader:
    """A caller who reads over A2A and ``/v1``; ``found`` are the answers, as text, by what was asked."""

    at: Instance
    who: str
    found: dict[str, str] = field(default_factory=dict[str, str])

    async def call(self, method: str, params: JsonObject) -> dict[str, Any]:
        answer = await self.at.call(f"{self.who}-key", method, params)
        self.found[f"{method} {params}"] = answer.text
        return cast("dict[str, Any]", answer.json().get("result", {}))

    async def get(self, path: str) -> dict[str, Any]:
        answer = await self.at.http.get(path, headers=bearer(self.who))
        self.found[path] = f"{answer.status_code} {answer.text}"
        return cast("dict[str, Any]", answer.json())

    async def read_all(self) -> None:
        listed = await self.call("ListTasks", {"includeArtifacts": True, "historyLength": 50})
        await self.call("ListTasks", {})
        await self.call("ListTasks", {"status": "TASK_STATE_COMPLETED", "historyLength": 1})
        page = await self.call("ListTasks", {"pageSize": 3, "includeArtifacts": True})
        while token := page.get("nextPageToken"):
            page = await self.call("ListTasks", {"pageSize": 3, "pageToken": token})
        for task in listed["tasks"]:
            await self.read_task(task)
        for path in ("", "?state=closed"):
            views = await self.get(f"/v1/approvals{path}")
            for view in (*views.get("pending", []), *views.get("closed", [])):
                for part in ("", "/explain", "/content"):
                    await self.get(f"/v1/approvals/{view['actionId']}{part}")
                await self.get(f"/v1/audit?actionId={view['actionId']}")
        for path in ("tasks", "sessions", "grants", "devices", "deliveries", "notices"):
            await self.get(f"/v1/{path}")

    async def read_task(self, task: dict[str, Any]) -> None:
        name = task["id"]
        await self.call("ListTasks", {"contextId": task["contextId"], "historyLength": 9})
        lengths: tuple[JsonObject, ...] = ({}, {"historyLength": 0}, {"historyLength": 2})
        for length in lengths:
            await self.call("GetTask", {"id": name, **length})
        await self.call("ListTaskPushNotificationConfigs", {"taskId": name})
        if task["status"]["state"] in ENDED:
            await self.call("SubscribeToTask", {"id": name})
            await self.call("CancelTask", {"id": name})
        shown = await self.get(f"/v1/tasks/{name}")
        session, thread = shown["sessionId"], shown["threadId"]
        for path in ("", "?limit=3", "?limit=3&before=6", "/tasks", "/channels"):
            await self.get(f"/v1/sessions/{session}{path}")
        for path in ("snapshot", "webhooks"):
            await self.get(f"/v1/streams/session:{session}/{path}")
        for path in ("", "/permissions"):
            await self.get(f"/v1/threads/{thread}{path}")
        for scope in (f"sessionId={session}", f"taskId={name}"):
            await self.get(f"/v1/audit?{scope}")
        path = f"/v1/streams/session:{session}/events?wait=0"
        read = await self.get(path)
        for _ in range(3):
            read = await self.get(f"{path}&after={read['cursor']}")


async def read_everything(at: Instance, who: str) -> dict[str, str]:
    reader = Reader(at, who)
    await reader.read_all()
    return reader.found


async def await_lost(at: Instance) -> None:
    """Until every task of an old store has ended, or waits for an answer while its agent is away and asked at times.

    The list of what is pending says the same by then.
    """

    async def is_settled() -> bool:
        listed = await at.call("ada-key", "ListTasks", {})
        tasks = listed.json()["result"]["tasks"]
        waiting = [task for task in tasks if task["status"]["state"] not in ENDED]
        asked = await at.http.get("/v1/approvals", headers=bearer("ada"))
        if len(asked.json()["pending"]) != len(waiting):
            return False
        for task in waiting:
            shown = await at.http.get(f"/v1/tasks/{task['id']}", headers=bearer("ada"))
            run = shown.json()["attempts"][-1]
            if (run["status"], run["deliveryMechanism"]) != ("lost", "polling"):
                return False
        return True

    await wait_until(is_settled, 30, "runs of agents that are away are lost, and polled")


def read_as_kept(asked: str, answer: str, marked: Counter[str]) -> str:
    """An answer without what it says of the archive, which answers of ``/v1`` alone do; ``marked`` counts these."""
    status, _, text = answer.partition(" ")
    if not asked.startswith("/v1/") or "archive" not in text:
        return answer
    found = orjson.loads(text)
    drop_archive(found, lambda name: marked.update([name]))
    return f"{status} {orjson.dumps(found).decode()}"


def drop_archive(value: object, count: Callable[[str], None]) -> None:
    """Takes out what says that a session has left memory: its ref, the fact of it, and the status that follows."""
    match value:
        case dict():
            members = cast("dict[str, object]", value)
            ref = members.pop("archive", None)
            if ref is not None:
                count("line" if "recorded" in members else "record")
                assert ref == f"{members['sessionId']}@{read_sequence(str(ref))}"
            if ref is not None and "recorded" in members:
                assert members["status"] == "archived"
                members["status"] = members["recorded"]
            if (told := members.pop("archived", None)) is not None:
                count("fact")
                assert cast("JsonObject", told)["payload"] == {"archive": ref}
            for member in members.values():
                drop_archive(member, count)
        case list():
            for item in cast("list[object]", value):
                drop_archive(item, count)
        case _:
            pass


def read_sequence(ref: str) -> int:
    return int(ref.partition("@")[2])


async def settle_reads(at: Instance) -> dict[str, dict[str, str]]:
    """What two callers read once nothing of an old store expires any more, or is taken over."""
    told: dict[str, dict[str, str]] = {}

    async def are_as_before() -> bool:
        before = {**told}
        told.update({who: await read_everything(at, who) for who in ("ada", "bob")})
        return told == before

    await wait_until(are_as_before, 30, "two reads are the same")
    return told


ENDED = ("TASK_STATE_COMPLETED", "TASK_STATE_FAILED", "TASK_STATE_CANCELED", "TASK_STATE_REJECTED")


async def open_store(rig: Rig) -> Store:
    """A store beside the gateways of a rig."""
    sealer = make_sealer(read_keys(Secret(KEY), "secret_key"), SystemIds().draw)
    return await Store.open(StoreSettings(rig.url, rig.folder / "blobs", sealer=sealer))


async def leave_all(rig: Rig) -> int:
    """Has every session leave the engine that has ended."""
    left = 0
    async with await open_store(rig) as store:
        ended = await store.ended_sessions.find(ALL_SHARDS, LATER_MS)
        for shard, sessions in ended.items():
            names = [one.session for one in sessions]
            archived = await store.archiver.archive(shard, names)
            assert archived.sessions == names
            left += len(names)
    return left


@pytest.mark.requirement("ST-18", "SNAP-1")
async def test_every_read_is_as_before(rig: Rig, request: pytest.FixtureRequest) -> None:
    at = await begin(rig)
    if request.node.callspec.params["rig"] != "lived":
        await await_lost(at)
    before = await settle_reads(at)
    assert await leave_all(rig) >= 8
    assert await leave_all(rig) == 0
    marked = Counter[str]()
    for instance in (at, await begin(rig)):
        for who, told in before.items():
            after = await read_everything(instance, who)
            assert after.keys() == told.keys()
            kept = {asked: read_as_kept(asked, after[asked], marked) for asked in after}
            changed = {
                asked: (told[asked], kept[asked]) for asked in told if kept[asked] != told[asked]
            }
            assert changed == {}
    assert min(marked["fact"], marked["record"], marked["line"]) >= 8
    statuses = Counter(text[:3] for told in before.values() for text in told.values())
    assert statuses["200"] > 100


async def test_a_store_with_an_archive_is_verified_and_rebuilt_without_a_problem(
    rig: Rig,
) -> None:
    left = await leave_all(rig)
    async with await open_store(rig) as store:
        report = await verify_store(store, rebuild=True)
        assert report.lines == []
        assert report.archived == left


async def test_a_conversation_that_has_left_goes_on(rig: Rig) -> None:
    """A further message into an archived context, from a gateway that has never seen it."""
    at = await rig.start(clients=[ADA, BOB])
    listed = await at.call("ada-key", "ListTasks", {"status": "TASK_STATE_COMPLETED"})
    [*_, task] = listed.json()["result"]["tasks"]
    left = await leave_all(rig)
    at = await rig.start(clients=[ADA, BOB])
    params = at.message("and now")
    cast("JsonObject", params["message"])["contextId"] = task["contextId"]
    answer = await at.call("ada-key", "SendMessage", params)
    assert answer.status_code == 200, answer.text
    said = answer.json()["result"]["task"]
    assert said["contextId"] == task["contextId"]
    assert said["status"]["state"] == "TASK_STATE_COMPLETED"
    of_context = await at.call("ada-key", "ListTasks", {"contextId": task["contextId"]})
    names = [one["id"] for one in of_context.json()["result"]["tasks"]]
    assert {said["id"], task["id"]} <= set(names)
    async with await open_store(rig) as store:
        report = await verify_store(store, rebuild=True)
        assert report.lines == []
        assert report.archived == left - 1
