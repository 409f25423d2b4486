"""Stores of every schema number are read, whole, and verified; and a changed form has a number of its own."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any, cast

import pytest

from passerelle.channels.cursor_check import CursorHeld, verify
from passerelle.core.errors import ConfigInvalid
from passerelle.core.ports.log import StreamKind, StreamRef
from passerelle.core.wire.json import JsonObject
from passerelle.delegation.verification.walk import verify_store
from passerelle.protocol.cursor import Cursor
from passerelle.store.keys import SCHEMA
from passerelle.store.store import Store, StoreSettings
from tests.integration.callers.rig import Instance, Rig, open_rig
from tests.integration.devices.asking import ADA, BOB, bearer
from tests.stores.dump import FOLDER, STORES, find_dump, load_dump
from tests.stores.make import QUESTIONS
from tests.support.engine import Server, ask, engine_server, started_legs
from tests.support.waiting import wait_until
from tools.stored_forms import digest_forms

__all__ = ["engine_server", "started_legs"]
pytestmark = pytest.mark.anyio
AWAY = "http://127.0.0.1:9"
"""Nobody listens there, so no agent says that it forgot a task."""


@pytest.fixture(params=STORES)
async def rig(
    request: pytest.FixtureRequest, engine_server: Server, tmp_path: Path, anyio_backend: str
) -> AsyncGenerator[Rig]:
    """Over one of the stores; no gateway of this version has been there yet."""
    ask(engine_server.url, "FLUSHALL")
    load_dump(engine_server.url, tmp_path / "blobs", find_dump(request.param))
    async with open_rig(engine_server.url, tmp_path) as opened:
        yield opened


def test_changed_forms_have_a_number_of_their_own() -> None:
    noted = cast("dict[str, str]", json.loads((FOLDER / "forms.json").read_text()))
    assert digest_forms() == noted.get(f"{SCHEMA}"), (
        "what is stored has changed: raise SCHEMA in store/keys.py, unless the number was in no release, "
        "and run python -m tests.stores.make"
    )


def test_every_number_has_its_store() -> None:
    assert {path.name for path in FOLDER.glob("*.gz")} == {find_dump(one).name for one in STORES}


async def test_a_store_is_verified_and_rebuilt_without_a_problem(rig: Rig) -> None:
    async with await Store.open(StoreSettings(rig.url, rig.folder / "blobs")) as store:
        report = await verify_store(store, rebuild=True)
    assert report.lines == []
    assert report.sessions >= 10


async def test_a_store_of_an_earlier_number_has_ours_from_now_on(rig: Rig) -> None:
    ask(rig.url, "HSET", "{00}:meta", "schema", SCHEMA - 1)
    async with await Store.open(StoreSettings(rig.url, rig.folder / "blobs")):
        assert ask(rig.url, "HGET", "{00}:meta", "schema") == b"%d" % SCHEMA
    ask(rig.url, "HSET", "{00}:meta", "schema", SCHEMA + 1)
    with pytest.raises(ConfigInvalid, match=f"the store has schema {SCHEMA + 1}"):
        await Store.open(StoreSettings(rig.url, rig.folder / "blobs"))


async def test_everything_in_a_store_is_read(rig: Rig) -> None:
    at = await rig.start(clients=[ADA, BOB], agents=[{"name": "echo", "url": AWAY}])
    listed = await call(at, "ada", "ListTasks", {"includeArtifacts": True, "historyLength": 50})
    tasks = {str(one["id"]): one for one in listed["tasks"]}
    states = {one["status"]["state"].removeprefix("TASK_STATE_") for one in tasks.values()}
    assert states >= {"COMPLETED", "FAILED"}
    for name, task in tasks.items():
        found = await call(at, "ada", "GetTask", {"id": name})
        assert found["artifacts" if "artifacts" in task else "id"]
        assert "urn:passerelle:missing" not in found.get("metadata", {})
        shown = await read(at, f"/v1/tasks/{name}")
        session, thread = shown["sessionId"], shown["threadId"]
        assert (await at.read_session(session))[0]["type"] == "session.created"
        for path in (f"sessions/{session}", f"threads/{thread}"):
            assert await read(at, f"/v1/{path}")
    questions: dict[str, JsonObject] = {}

    async def are_listed() -> bool:
        """What was open may expire meanwhile: the store is as old as its number."""
        for path, name in (("", "pending"), ("?state=closed", "closed")):
            listed = (await read(at, f"/v1/approvals{path}"))[name]
            questions.update({one["actionId"]: one for one in listed})
        return len(questions) == QUESTIONS

    await wait_until(are_listed, 20, "all questions are listed")
    for name, one in questions.items():
        assert (await read(at, f"/v1/approvals/{name}"))["digest"] == one["digest"]
        assert (await read(at, f"/v1/audit?actionId={name}"))["proof"]["state"] == "whole"
    assert len((await read(at, "/v1/devices"))["devices"]) == 1


async def test_a_session_of_an_earlier_number_goes_on(rig: Rig) -> None:
    """Its stream has entries of both forms then, and is read from every place in it."""
    at = await rig.start(clients=[ADA, BOB])
    listed = await call(at, "ada", "ListTasks", {"status": "TASK_STATE_COMPLETED"})
    before = cast("JsonObject", listed["tasks"][0])
    params = at.message("and now")
    cast("JsonObject", params["message"])["contextId"] = before["contextId"]
    said = await call(at, "ada", "SendMessage", params)
    session = (await read(at, f"/v1/tasks/{said['task']['id']}"))["sessionId"]
    log, stream = at.gateway.store.log, StreamRef(StreamKind.SESSION, session)
    head, entries = await log.read_resume(stream, 0, 1_000)
    assert head is not None
    assert [entry.sequence for entry in entries] == [*range(1, head.sequence + 1)]
    for after in range(head.sequence):
        cursor = Cursor(head.epoch, after, entries[after].previous)
        _, page = await log.read_resume(stream, after, 5)
        assert page == entries[after : after + 5]
        assert isinstance(verify(head, page, cursor), CursorHeld)
        assert await log.read_frame(stream, after + 1) == entries[after].cut_frame()
    async with await Store.open(StoreSettings(rig.url, rig.folder / "blobs")) as store:
        assert (await verify_store(store)).lines == []


async def call(at: Instance, who: str, method: str, params: JsonObject) -> dict[str, Any]:
    answer = await at.call(f"{who}-key", method, params)
    assert answer.status_code == 200, answer.text
    return cast("dict[str, Any]", answer.json()["result"])


async def read(at: Instance, path: str) -> dict[str, Any]:
    answer = await at.http.get(path, headers=bearer("ada"))
    assert answer.status_code == 200, f"{path}: {answer.text}"
    return cast("dict[str, Any]", answer.json())
