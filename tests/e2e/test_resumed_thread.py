"""A thread is resumed after the kill of its gateway: its running task is followed again (CMD-3)."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.processes import AGENT, open_caller, run_gateway
from tests.support.scripted_peer import ScriptedPeer
from tests.support.waiting import wait_until

pytestmark = pytest.mark.anyio


@pytest.mark.requirement("CMD-3", "CMD-34")
async def test_task_of_a_killed_gateway_is_named_as_attached_and_completes(tmp_path: Path) -> None:
    async with (
        ScriptedPeer(AGENT) as peer,
        run_gateway(tmp_path, {AGENT: {"url": peer.url}}) as gateway,
        open_caller(gateway) as caller,
    ):
        peer.hold()
        begun = (
            await caller.http.post("/v1/turns", json={"agent": AGENT, "text": "echo one"})
        ).json()
        path = f"/v1/threads/{begun['threadId']}/resume"
        peer.release(1)

        async def is_known() -> bool:
            record = await caller.read_record(begun["taskId"])
            return any("remoteTaskId" in one for one in record["attempts"])

        await wait_until(is_known, 15, "the agent has the task")
        before = (await caller.http.post(path, json={})).json()
        assert [one["outcome"] for one in before["tasks"]] == ["attached"]
        gateway.kill()
        await gateway.start()

        async def is_attached() -> bool:
            token = {"resumeToken": before["resumeToken"]}
            after = (await caller.http.post(path, json=token)).json()
            assert after["resumed"] == "exact", after
            (one,) = after["tasks"]
            assert one["taskId"] == begun["taskId"]
            return bool(one["outcome"] == "attached")

        await wait_until(is_attached, 30, "the task is followed again")
        peer.release_all()

        async def is_done() -> bool:
            return bool((await caller.read_record(begun["taskId"]))["status"] == "completed")

        await wait_until(is_done, 30, "the task is completed")
        last = (await caller.http.post(path, json={"resumeToken": before["resumeToken"]})).json()
        assert (last["tasks"], last["resumed"]) == ([], "exact")
        assert last["missed"] > 0
        assert len(peer.messages) == 1
