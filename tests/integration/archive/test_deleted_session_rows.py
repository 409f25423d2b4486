"""After a failover that restores list rows of a deleted session, reads leave it out and do not fail."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from pathlib import Path
from typing import cast

import pytest

from passerelle.core.ids import ALL_SHARDS
from passerelle.store.archive import reader
from passerelle.store.archive.session_survey import SessionChoice
from tests.contract.test_session_forgetting import copy_engine
from tests.integration.callers.rig import Instance, Rig, run_rig
from tests.integration.devices.asking import ADA, ask, bearer, make_answer, say
from tests.support.engine import Server, engine_server, started_legs
from tests.support.engine import ask as ask_engine
from tests.support.waiting import wait_until

__all__ = ["engine_server", "started_legs"]
pytestmark = pytest.mark.anyio
_LISTS = (":idx:", ":inc:", ":al:")


@pytest.fixture
async def rig(engine_server: Server, tmp_path: Path, anyio_backend: str) -> AsyncGenerator[Rig]:
    async with run_rig(engine_server.url, tmp_path) as opened:
        yield opened


async def read(at: Instance, path: str, status: int = 200) -> str:
    answer = await at.http.get(path, headers=bearer("ada"))
    assert answer.status_code == status, answer.text
    return answer.text


async def test_restored_list_rows_do_not_show_a_deleted_session(
    rig: Rig, engine_server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    at = await rig.start(clients=[ADA], blobs=tmp_path / "blobs", retention={"memory": "1s"})
    view = await ask(at)
    assert (await say(at, bearer("ada"), make_answer(view))).status_code == 200
    kept = (await at.send("ada-key")).json()["result"]["task"]
    store, session = at.gateway.store, str(view["sessionId"])

    async def has_left() -> bool:
        return len(await store.archive.list_sessions(ALL_SHARDS)) == 2

    await wait_until(has_left, 30, "both sessions are archived")
    listed = (await at.call("ada-key", "ListTasks", {})).json()["result"]["tasks"]
    [gone] = [one for one in listed if one["id"] != kept["id"]]
    copies = copy_engine(engine_server)
    done = await store.session_forgetting.forget(
        SessionChoice(store.clock.now_ms(), frozenset({session})), "operator"
    )
    assert done.count == 1
    for key, (url, dumped) in copies.items():
        if any(part in key for part in _LISTS):
            ask_engine(url, "RESTORE", key, 0, dumped, "REPLACE")
    monkeypatch.setattr(reader, "FRESH_S", 0.0)  # treat cached reads as old
    for further in ({}, {"status": "TASK_STATE_COMPLETED"}, {"includeArtifacts": True}):
        page = (await at.call("ada-key", "ListTasks", cast("dict[str, object]", further))).json()  # type: ignore[arg-type]
        assert [one["id"] for one in page["result"]["tasks"]] == [kept["id"]]
    context = {"contextId": gone["contextId"]}
    page = (await at.call("ada-key", "ListTasks", context)).json()
    assert page["result"]["tasks"] == []
    answer = (await at.call("ada-key", "GetTask", {"id": gone["id"]})).json()
    assert answer["error"]["code"] == -32001
    assert gone["id"] not in await read(at, "/v1/tasks")
    await read(at, f"/v1/tasks/{gone['id']}", 404)
    await read(at, f"/v1/sessions/{session}", 404)
    await read(at, "/v1/approvals")
    action = view["actionId"]
    for path in ("", "/explain"):
        await read(at, f"/v1/approvals/{action}{path}", 404)
    assert str(action) not in await read(at, "/v1/approvals?state=allowed")
