"""Turns that wait in a context while their gateway is killed: the acknowledged order is kept."""

from __future__ import annotations

from pathlib import Path

import pytest

from passerelle.core.wire.json import JsonObject
from tests.support.command import run_command
from tests.support.processes import AGENT, open_caller, read_stored, run_gateway
from tests.support.scripted_peer import ScriptedPeer
from tests.support.waiting import wait_until

pytestmark = pytest.mark.anyio


@pytest.mark.requirement("VAL-5", "SNAP-4")
async def test_turn_promoted_right_before_a_kill_runs_first(tmp_path: Path) -> None:
    agent: JsonObject = {"timeout": {"arrival": "1s"}}
    async with (
        ScriptedPeer(AGENT) as peer,
        run_gateway(tmp_path, {AGENT: {"url": peer.url, **agent}}) as gateway,
        open_caller(gateway) as caller,
    ):
        peer.hold()
        first: JsonObject = {"agent": AGENT, "text": "echo first"}
        begun = (await caller.http.post("/v1/turns", json=first)).json()
        assert begun["state"] == "accepted"
        await wait_until(lambda: peer.texts == ["echo first"], 10, "the agent works at it")
        waiting: list[JsonObject] = []
        for text in ("echo a", "echo b", "echo c"):
            further = {
                "agent": AGENT,
                "text": text,
                "contextId": begun["contextId"],
                "whenBusy": "queue",
            }
            waiting.append((await caller.http.post("/v1/turns", json=further)).json())
        assert [(one["state"], one["position"]) for one in waiting] == [
            ("queued", place) for place in (1, 2, 3)
        ]
        thread, last = begun["threadId"], str(waiting[2]["turnId"])
        promoted = await caller.http.post(f"/v1/threads/{thread}/queue/{last}/promote")
        gateway.kill()
        assert promoted.is_success, promoted.text
        await gateway.start()
        listed = (await run_command(gateway, "turns", "list", thread)).lines
        assert listed[-1] == "policy parallel, 1 under way, 3 waiting"
        wanted = [waiting[place]["turnId"] for place in (2, 0, 1)]
        assert [line.split()[1] for line in listed[1:4]] == wanted
        stored = read_stored(gateway, begun["sessionId"])
        changes = [one["payload"] for one in stored if one["type"] == "queue.changed"]
        assert [one["order"] for one in changes if one["change"] == "promoted"] == [wanted]
        peer.release_all()
        for one in waiting:
            task = str(one["taskId"])

            async def is_done(task: str = task) -> bool:
                return bool((await caller.read_record(task))["status"] == "completed")

            await wait_until(is_done, 40, f"{task} is completed")
        assert peer.texts == ["echo first", "echo c", "echo a", "echo b"]
