"""Archived tasks other than plain messages: transferred, cancelled, retried, sent to webhooks."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from functools import partial
from pathlib import Path
from typing import Final, cast

import pytest

from passerelle.core.principal import Principal
from passerelle.core.wire.json import JsonObject
from passerelle.delegation.verification.walk import verify_store
from passerelle.store.archive.session_survey import SessionChoice
from tests.integration.archive.test_archived_reads import archive_ended, open_store, read_all
from tests.integration.callers.rig import Answer, Instance, Rig, run_rig
from tests.integration.devices.asking import bearer
from tests.support.engine import Server, engine_server, started_legs
from tests.support.relayed import await_relayed
from tests.support.surface import find_changes, read_at_rest
from tests.support.waiting import wait_until
from tests.support.webhook_receiver import WebhookReceiver

__all__ = ["engine_server", "started_legs"]
pytestmark = pytest.mark.anyio
SCOPES: Final = [
    "a2a:call",
    "tasks:read",
    "tasks:write",
    "approvals:read",
    "approvals:decide",
    "audit:read",
]
CLIENTS: Final[list[dict[str, object]]] = [
    {"name": name, "scopes": SCOPES} for name in ("ada", "bob")
]


@pytest.fixture
async def rig(engine_server: Server, tmp_path: Path, anyio_backend: str) -> AsyncGenerator[Rig]:
    async with run_rig(engine_server.url, tmp_path) as opened:
        yield opened


async def call(at: Instance, who: str, method: str, params: JsonObject) -> Answer:
    answer = (await at.call(f"{who}-key", method, params)).json()
    assert "result" in answer, answer
    return cast("Answer", answer["result"])


async def post(at: Instance, who: str, path: str, body: JsonObject) -> Answer:
    answer = await at.http.post(path, json=body, headers=bearer(who))
    assert answer.is_success, answer.text
    return cast("Answer", answer.json())


async def do_other_work(at: Instance, receiver: WebhookReceiver) -> dict[str, str]:
    """Creates tasks of each kind and returns their sessions by kind; all tasks have ended."""
    push: JsonObject = {"taskPushNotificationConfig": {"url": f"{receiver.url}/told"}}
    pushed = await call(at, "ada", "SendMessage", {**at.message("chunks 3"), "configuration": push})
    silent = await at.send("ada-key", "silent", returnImmediately=True)
    stopped = silent.json()["result"]["task"]
    await call(at, "ada", "CancelTask", {"id": stopped["id"]})
    made = await post(at, "ada", "/v1/tasks", {"agent": "echo", "objective": "chunks 2"})
    given = {"id": str(made["task"]["taskId"])}
    await post(at, "ada", f"/v1/tasks/{given['id']}/give", {"owner": "bob"})
    await post(at, "bob", f"/v1/tasks/{given['id']}/start", {})
    failed = (await at.send("ada-key", "fail")).json()["result"]["task"]
    await post(at, "ada", f"/v1/tasks/{failed['id']}/retry", {"reason": "once more"})
    await wait_until(lambda: receiver.notices, 20, "the webhook is notified")
    work = {"told": pushed["task"], "stopped": stopped, "given": given, "retried": failed}
    owners = {"given": "bob"}
    sessions = dict[str, str]()
    for name, task in work.items():
        who = owners.get(name, "ada")
        shown = await at.http.get(f"/v1/tasks/{task['id']}", headers=bearer(who))
        sessions[name] = str(shown.json()["sessionId"])
    return sessions


async def test_every_read_of_other_work_is_the_same_after_archiving(rig: Rig) -> None:
    async with WebhookReceiver() as receiver:
        at = await rig.start(clients=CLIENTS, webhooks={"allow": ["http://127.0.0.1:*"]})
        sessions = await do_other_work(at, receiver)

        async def is_over() -> bool:
            store = at.gateway.store
            return not [one for one in sessions.values() if await store.log.read_open(one)]

        await wait_until(is_over, 20, "all tasks have ended")
        await await_relayed(at.gateway.store)
        before = {who: await read_at_rest(partial(read_all, at, who)) for who in ("ada", "bob")}
        assert await archive_ended(rig) == len(sessions)
        other = await rig.start(clients=CLIENTS, webhooks={"allow": ["http://127.0.0.1:*"]})
        for instance in (at, other):
            for who, texts in before.items():
                assert find_changes(texts, await read_all(instance, who)) == {}
        async with await open_store(rig) as store:
            assert (await verify_store(store, rebuild=True)).lines == []


async def test_session_with_a_transferred_task_is_deleted_for_both_owners(rig: Rig) -> None:
    async with WebhookReceiver() as receiver:
        at = await rig.start(clients=CLIENTS, webhooks={"allow": ["http://127.0.0.1:*"]})
        sessions = await do_other_work(at, receiver)
        await archive_ended(rig)
        async with await open_store(rig) as store:
            choice = SessionChoice(store.clock.now_ms(), frozenset({sessions["given"]}))
            assert (await store.session_forgetting.forget(choice, "carl")).count == 1
            assert (await verify_store(store, rebuild=True)).lines == []
            rows = await store.projections.read_index(Principal("bob").key, "echo", None, 10)
            assert rows == []
        listed = await call(at, "bob", "ListTasks", {})
        assert listed["tasks"] == []
        own = (await call(at, "ada", "ListTasks", {}))["tasks"]
        assert len({task["contextId"] for task in own}) == len(sessions) - 1
