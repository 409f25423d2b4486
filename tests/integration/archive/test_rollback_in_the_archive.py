"""An archived thread can be rolled back, and the turns rolled back stay readable (EXT-11)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import pytest

from passerelle.delegation.verification.walk import verify_store
from tests.integration.archive.test_archived_reads import archive_ended, open_store
from tests.integration.callers.rig import open_rig
from tests.support.engine import Server, ask, engine_server, started_legs

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
HEADERS: Final = {"Authorization": "Bearer ada-key"}


@pytest.fixture
async def rig(engine_server: Server, tmp_path: Path, anyio_backend: str) -> AsyncGenerator[Rig]:
    ask(engine_server.url, "FLUSHALL")
    async with open_rig(engine_server.url, tmp_path) as opened:
        yield opened


async def read(at: Instance, path: str) -> dict[str, Any]:
    response = await at.http.get(path, headers=HEADERS)
    assert response.status_code == 200, response.text
    found: dict[str, Any] = response.json()
    return found


async def post(at: Instance, path: str, body: dict[str, str]) -> dict[str, Any]:
    response = await at.http.post(path, json=body, headers={**HEADERS, "Idempotency-Key": "back"})
    assert response.status_code == 200, response.text
    found: dict[str, Any] = response.json()
    return found


async def send(at: Instance, text: str, context: str | None = None) -> dict[str, Any]:
    params = at.message(text)
    if context is not None:
        params["message"] |= {"contextId": context, "messageId": f"m-{text}"}  # type: ignore[operator]  # a message is an object
    answer = (await at.call("ada-key", "SendMessage", params)).json()
    task: dict[str, Any] = answer["result"]["task"]
    return task


@pytest.mark.requirement("EXT-11", "PRS-5", "ST-18")
async def test_archived_thread_rolls_back_and_reads_the_same_once_archived_again(
    rig: Rig,
) -> None:
    at = await rig.start(clients=[ADA])
    one = await send(at, "one")
    tasks = [one, *[await send(at, text, one["contextId"]) for text in ("two", "three")]]
    records = [await read(at, f"/v1/tasks/{task['id']}") for task in tasks]
    session, thread = records[0]["sessionId"], records[0]["threadId"]
    stored = await at.read_session(session)
    assert await archive_ended(rig) == 1
    assert "archive" in await read(at, f"/v1/tasks/{one['id']}")
    path = f"/v1/threads/{thread}/rollback"
    answer = await post(at, path, {"toTurn": records[0]["turnId"]})
    assert (answer["outcome"], answer["tasks"]) == (
        "rolled_back",
        [task["id"] for task in tasks[1:]],
    )
    after = await at.read_session(session)
    assert after[: len(stored)] == stored
    before = await read(at, f"/v1/threads/{thread}")
    assert await archive_ended(rig) == 1
    now = [await read(at, f"/v1/tasks/{task['id']}") for task in tasks]
    assert [one.get("rolledBack") for one in now] == [None, *[answer["boundaryId"]] * 2]
    again = await read(at, f"/v1/threads/{thread}")
    assert again["rolledBack"] == before["rolledBack"]
    assert again["artifacts"] == before["artifacts"]
    assert await post(at, path, {"toTurn": records[0]["turnId"]}) == {**answer, "repeated": True}
    async with await open_store(rig) as store:
        assert (await verify_store(store)).ok
    given = {"toTurn": records[0]["turnId"], "text": "one boat"}
    path = f"/v1/threads/{thread}/compact"
    response = await at.http.post(path, json=given, headers=HEADERS)
    assert (response.status_code, response.json()["summarizedBy"]) == (201, "ada")
    assert await archive_ended(rig) == 1
    shown = await read(at, f"/v1/threads/{thread}/context")
    assert (shown["summaries"][0]["text"], shown["first"]) == (
        "one boat",
        response.json()["covers"] + 1,
    )
    assert any("in the archive" in one for one in shown["missing"])
    further = await send(at, "four", one["contextId"])
    assert "rolledBack" not in await read(at, f"/v1/tasks/{further['id']}")
    async with await open_store(rig) as store:
        assert (await verify_store(store)).ok
