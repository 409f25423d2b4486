"""Archived tasks: which reads report the archive, what its ref returns, and that no due row remains."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, cast

import pytest

from passerelle.core.principal import Principal
from passerelle.delegation.verification.walk import verify_store
from passerelle.runtime.records.places import name_home
from tests.integration.archive.test_archived_reads import archive_ended
from tests.integration.callers.rig import open_rig
from tests.support.engine import Server, ask, engine_server, started_legs
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator
    from pathlib import Path

    from tests.integration.callers.rig import Instance, Rig

__all__ = ["engine_server", "started_legs"]
pytestmark = pytest.mark.anyio
ADA: Final = {
    "name": "ada",
    "scopes": ["a2a:call", "tasks:read", "tasks:write", "channels:connect"],
}
BOB: Final = {"name": "bob", "scopes": ["tasks:read"]}


@pytest.fixture
async def rig(engine_server: Server, tmp_path: Path, anyio_backend: str) -> AsyncGenerator[Rig]:
    ask(engine_server.url, "FLUSHALL")
    async with open_rig(engine_server.url, tmp_path) as opened:
        yield opened


async def read(at: Instance, path: str, who: str = "ada", status: int = 200) -> dict[str, Any]:
    response = await at.http.get(path, headers={"Authorization": f"Bearer {who}-key"})
    assert response.status_code == status, response.text
    found: dict[str, Any] = response.json()
    return found


async def send(at: Instance, context: str | None = None) -> dict[str, Any]:
    params = at.message("hello")
    message = cast("dict[str, Any]", params["message"])
    if context is not None:
        message |= {"contextId": context, "messageId": "m-further"}
    task: dict[str, Any] = (await at.call("ada-key", "SendMessage", params)).json()["result"][
        "task"
    ]
    return task


def list_due(rig: Rig) -> list[bytes]:
    """Due rows of every shard."""
    names = cast("list[bytes]", ask(rig.url, "KEYS", "*:due"))
    rows = [cast("list[bytes]", ask(rig.url, "ZRANGE", name.decode(), "0", "-1")) for name in names]
    return [one for row in rows for one in row]


@pytest.mark.requirement("ST-18", "TEV-17", "EVC-4")
async def test_ref_of_task_archived_returns_the_whole_record_after_retention(
    rig: Rig,
) -> None:
    blobs = rig.folder / "blobs"
    at = await rig.start(clients=[ADA, BOB], blobs=blobs, retention={"memory": "5s"})
    task = await send(at)
    path = f"/v1/tasks/{task['id']}"
    record = await read(at, path)
    assert not {"archive", "archived"} & record.keys()
    session = record["sessionId"]
    stored = await at.read_session(session)

    async def is_archived() -> bool:
        return "archived" in await read(at, path)

    await wait_until(is_archived, 60, "retention has passed, and the session has left memory")
    kept = await read(at, path)
    archived, ref = kept.pop("archived"), kept.pop("archive")
    assert kept == record
    assert (archived["type"], archived["payload"]) == ("task.archived", {"archive": ref})
    assert (archived["taskId"], archived["sessionId"]) == (task["id"], session)
    assert "sequence" not in archived
    other = await rig.start(clients=[ADA, BOB], blobs=blobs)
    assert (await read(other, path))["archived"] == archived

    found = await read(other, f"/v1/archive/{ref}")
    assert (found["ref"], found["sessionId"], found["inMemory"]) == (ref, session, False)
    [whole] = found["tasks"]
    assert whole == {name: value for name, value in record.items() if name != "version"}
    assert found["events"] == stored
    assert found["sequence"] == stored[-1]["sequence"]
    assert "after" not in found
    line = await read(other, f"{path}/summary")
    assert (line["status"], line["recorded"], line["archive"]) == ("archived", "completed", ref)
    [listed] = (await read(other, "/v1/tasks"))["tasks"]
    assert (listed["status"], listed["archive"]) == ("completed", ref)
    # No due row and no key names the archived task.
    names = (task["id"].encode(), session.encode(), record["attempts"][0]["runId"].encode())
    assert [row for row in list_due(rig) if any(name in row for name in names)] == []
    assert ask(rig.url, "KEYS", f"*{task['id']}*") == []


@pytest.mark.requirement("TEV-17")
async def test_ref_is_paged_and_readable_only_by_its_owner(rig: Rig) -> None:
    at = await rig.start(clients=[ADA, BOB])
    record = await read(at, f"/v1/tasks/{(await send(at))['id']}")
    stored = await at.read_session(record["sessionId"])
    assert await archive_ended(rig) == 1
    ref = (await read(at, f"/v1/tasks/{record['taskId']}"))["archive"]
    pages = [await read(at, f"/v1/archive/{ref}?limit=4")]
    while after := pages[-1].get("after"):
        pages.append(await read(at, f"/v1/archive/{ref}?limit=4&after={after}"))
    assert [event for page in pages for event in page["events"]] == stored
    assert [len(page["tasks"]) for page in pages] == [1] + [0] * (len(pages) - 1)
    session, _, last = ref.partition("@")
    await read(at, f"/v1/archive/{ref}", "bob", 404)
    await read(at, f"/v1/archive/{session}@{int(last) + 1}", status=404)
    for wrong in ("se_x@1", session, f"{session}@0", f"{session}@{'9' * 20}"):
        problem = await read(at, f"/v1/archive/{wrong}", status=400)
        assert problem["field"] == "ref"


@pytest.mark.requirement("EXT-11")
async def test_paging_through_an_archived_session_records_its_window_once(rig: Rig) -> None:
    at = await rig.start(clients=[ADA, BOB])
    home = name_home(Principal("ada"))

    async def list_windows() -> list[dict[str, Any]]:
        events = await at.read_session(home)
        return [one["payload"] for one in events if one["type"] == "history.window.loaded"]

    task = await send(at)
    record = await read(at, f"/v1/tasks/{task['id']}")
    session, last = record["sessionId"], len(await at.read_session(record["sessionId"]))
    await read(at, f"/v1/archive/{session}@{last}")
    assert await list_windows() == [], "it is in memory"
    await archive_ended(rig)
    ref = (await read(at, f"/v1/tasks/{task['id']}"))["archive"]
    page = await read(at, f"/v1/archive/{ref}?limit=4")
    window = [{"first": 1, "last": 4, "source": "archive", "nextCursor": "4", "of": session}]
    assert await list_windows() == window
    other = await rig.start(clients=[ADA, BOB])
    for again in (at, other):
        await read(again, f"/v1/archive/{ref}?limit=4&after={page['after']}")
    assert await list_windows() == window
    await read(at, f"/v1/archive/{ref}", "bob", 404)
    assert await list_windows() == window
    assert (await verify_store(at.gateway.store, rebuild=True)).problems == []


@pytest.mark.requirement("TEV-17")
async def test_ref_stays_valid_after_the_session_continues(rig: Rig) -> None:
    at = await rig.start(clients=[ADA, BOB])
    task = await send(at)
    path = f"/v1/tasks/{task['id']}"
    record = await read(at, path)
    stored = await at.read_session(record["sessionId"])
    await archive_ended(rig)
    ref = (await read(at, path))["archive"]
    await send(at, task["contextId"])
    assert await read(at, path) == record
    found = await read(at, f"/v1/archive/{ref}")
    assert (found["inMemory"], found["events"]) == (True, stored)
    await archive_ended(rig)
    again = (await read(at, path))["archive"]
    assert again != ref
    assert (await read(at, f"/v1/archive/{ref}"))["events"] == stored


@pytest.mark.requirement("CHN-12")
async def test_reconnect_of_a_device_that_is_up_to_date_reports_archived(rig: Rig) -> None:
    at = await rig.start(clients=[ADA, BOB])
    record = await read(at, f"/v1/tasks/{(await send(at))['id']}")
    stream = f"session:{record['sessionId']}"
    state = await read(at, f"/v1/streams/{stream}/snapshot")

    async def reconnect(**given: str) -> str:
        headers = {"Authorization": "Bearer ada-key"}
        response = await at.http.post(
            f"/v1/streams/{stream}/reconnect", json={"device": "phone", **given}, headers=headers
        )
        assert response.status_code == 200, response.text
        return str(response.json()["recovery"])

    assert await reconnect(cursor=state["cursor"]) == "idle"
    await archive_ended(rig)
    assert await reconnect(cursor=state["cursor"]) == "archived_or_missing"
    assert await reconnect() == "completed_undelivered"
