"""Every read returns the same bytes before and after its session is archived, also from a new gateway.

Only reads of ``/v1`` differ: they add that the session is archived.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncGenerator
from functools import partial
from pathlib import Path
from typing import cast

import pytest

from passerelle.core.ids import ALL_SHARDS
from passerelle.core.wire.json import JsonObject
from passerelle.core.wire.times import parse_ms
from passerelle.delegation.verification.walk import verify_store
from passerelle.runtime.common.clock import SystemClock, SystemIds
from passerelle.runtime.common.sealer import make_sealer, read_keys
from passerelle.runtime.common.secret import Secret
from passerelle.store.store import Store, StoreSettings
from tests.integration.callers.rig import KEY, Instance, Rig, open_rig
from tests.integration.devices.asking import ADA, BOB, bearer
from tests.stores.dump import STORES, find_dump, load_dump
from tests.stores.make import QUESTIONS, fill, settle
from tests.support.engine import Server, ask, engine_server, started_legs
from tests.support.relayed import await_relayed
from tests.support.surface import ENDED, Surface, count_marks, find_changes, read_at_rest
from tests.support.waiting import wait_until

__all__ = ["engine_server", "started_legs"]
pytestmark = pytest.mark.anyio
AWAY = "http://127.0.0.1:9"
LATER_MS = 1 << 45
TOTAL_MS = 1_800_000
"""Total time that an agent has for a task by default."""


@pytest.fixture(params=["lived", *STORES])
async def rig(
    request: pytest.FixtureRequest, engine_server: Server, tmp_path: Path, anyio_backend: str
) -> AsyncGenerator[Rig]:
    """A store that a gateway has filled now, or one recorded by an earlier version."""
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


async def read_all(at: Instance, who: str) -> dict[str, str]:
    return await Surface(at.http, bearer(who), ["echo"]).read_all()


async def await_lost(at: Instance) -> None:
    """Waits until every task of a recorded store has ended: its agent is away, and waiting tasks run out of time.

    A task of a store that was filled now still has time, and is polled. The lists of approvals are stable then too: an
    open approval expires or is closed with its task, and the delivery of an expired one was given up.
    """

    async def is_settled() -> bool:
        listed = await at.call("ada-key", "ListTasks", {})
        tasks = listed.json()["result"]["tasks"]
        waiting = [task for task in tasks if task["status"]["state"] not in ENDED]
        asked = await at.http.get("/v1/approvals", headers=bearer("ada"))
        pending = asked.json()["pending"]
        closed = await at.http.get("/v1/approvals?state=closed", headers=bearer("ada"))
        given_up = [one["returnState"] != "owed" for one in closed.json()["closed"]]
        if (
            len(pending) != len(waiting)
            or len(pending) + len(given_up) != QUESTIONS
            or not all(given_up)
        ):
            return False
        for task in waiting:
            shown = await at.http.get(f"/v1/tasks/{task['id']}", headers=bearer("ada"))
            record = shown.json()
            run, made_ms = record["attempts"][-1], parse_ms(record["createdAt"])
            is_asked = (run["status"], run["deliveryMechanism"]) == ("lost", "polling")
            if not is_asked or SystemClock().now_ms() - made_ms > TOTAL_MS:
                return False
        return True

    await wait_until(is_settled, 60, "runs of agents that are away are lost, and polled")


async def await_polling(at: Instance) -> None:
    """Waits until agents of tasks in ``waiting_input`` are polled, which a fact records some seconds later."""

    async def are_polled() -> bool:
        listed = await at.http.get("/v1/tasks?status=waiting_input", headers=bearer("ada"))
        lines = listed.json()["tasks"]
        for line in lines:
            found = await at.http.get(f"/v1/tasks/{line['taskId']}", headers=bearer("ada"))
            if found.json()["attempts"][-1]["deliveryMechanism"] != "polling":
                return False
        return bool(lines)

    await wait_until(are_polled, 20, "agents that wait for input are polled")


async def settle_reads(at: Instance) -> dict[str, dict[str, str]]:
    """Returns the reads of two callers once no task of an old store expires or is taken over any more."""
    await await_relayed(at.gateway.store)
    return {who: await read_at_rest(partial(read_all, at, who)) for who in ("ada", "bob")}


async def open_store(rig: Rig) -> Store:
    """Opens a store of the test, separate from the gateways of the rig."""
    sealer = make_sealer(read_keys(Secret(KEY), "secret_key"), SystemIds().draw)
    return await Store.open(StoreSettings(rig.url, rig.folder / "blobs", sealer=sealer))


async def archive_ended(rig: Rig) -> int:
    """Archives every session that has ended; returns how many."""
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
async def test_every_read_is_the_same_after_archiving(
    rig: Rig, request: pytest.FixtureRequest
) -> None:
    at = await begin(rig)
    await (await_polling if request.node.callspec.params["rig"] == "lived" else await_lost)(at)
    before = await settle_reads(at)
    assert await archive_ended(rig) >= 8
    assert await archive_ended(rig) == 0
    marked = Counter[str]()
    for instance in (at, await begin(rig)):
        for who, texts in before.items():
            after = await read_all(instance, who)
            assert find_changes(texts, after) == {}
            marked += count_marks(after)
    assert min(marked["fact"], marked["record"], marked["line"]) >= 8
    statuses = Counter(text[:3] for texts in before.values() for text in texts.values())
    assert statuses["200"] > 100


async def test_store_with_an_archive_verifies_and_rebuilds_without_problems(
    rig: Rig,
) -> None:
    left = await archive_ended(rig)
    async with await open_store(rig) as store:
        report = await verify_store(store, rebuild=True)
        assert report.lines == []
        assert report.archived == left


async def test_archived_conversation_accepts_a_further_message(rig: Rig) -> None:
    """Sends a further message into an archived context, to a gateway that has not read it before."""
    at = await rig.start(clients=[ADA, BOB])
    listed = await at.call("ada-key", "ListTasks", {"status": "TASK_STATE_COMPLETED"})
    [*_, task] = listed.json()["result"]["tasks"]
    left = await archive_ended(rig)
    at = await rig.start(clients=[ADA, BOB])
    params = at.message("and now")
    cast("JsonObject", params["message"])["contextId"] = task["contextId"]
    answer = await at.call("ada-key", "SendMessage", params)
    assert answer.status_code == 200, answer.text
    continued = answer.json()["result"]["task"]
    assert continued["contextId"] == task["contextId"]
    assert continued["status"]["state"] == "TASK_STATE_COMPLETED"
    of_context = await at.call("ada-key", "ListTasks", {"contextId": task["contextId"]})
    names = [one["id"] for one in of_context.json()["result"]["tasks"]]
    assert {continued["id"], task["id"]} <= set(names)
    async with await open_store(rig) as store:
        report = await verify_store(store, rebuild=True)
        assert report.lines == []
        assert report.archived == left - 1
