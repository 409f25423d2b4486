"""A paused agent whose gateway is killed: waiting tasks survive with their reason and their order."""

from __future__ import annotations

from pathlib import Path

import pytest

from passerelle.core.wire.json import JsonObject
from tests.support.command import run_command
from tests.support.processes import AGENT, find_engine_pid, open_caller, run_gateway
from tests.support.scripted_peer import ScriptedPeer
from tests.support.waiting import wait_until

pytestmark = pytest.mark.anyio


@pytest.mark.requirement("ST-3", "TEV-3")
async def test_paused_agent_and_its_waiting_tasks_survive_kills_in_order(tmp_path: Path) -> None:
    async with (
        ScriptedPeer(AGENT) as peer,
        run_gateway(tmp_path, {AGENT: {"url": peer.url, "limits": {"concurrency": 1}}}) as gateway,
    ):
        said = ("agents", "pause", AGENT, "--reason", "it is being moved")
        (line,) = (await run_command(gateway, *said)).lines
        assert line.startswith(f"{AGENT}  paused  by owner at ")
        assert line.endswith("  it is being moved")
        async with open_caller(gateway) as caller:
            texts = [f"echo number {number}" for number in range(8)]
            waiting: list[str] = []
            for text in texts[:4]:
                task = await caller.send(text)
                assert task["status"]["state"] == "TASK_STATE_SUBMITTED"
                waiting.append(task["id"])
            gateway.kill()
            await gateway.start()
            waiting += [(await caller.send(text))["id"] for text in texts[4:]]
            engine = find_engine_pid(gateway)
            gateway.kill()
            await gateway.start()
            assert find_engine_pid(gateway) != engine
            listed = (await run_command(gateway, "agents")).lines
            assert (await run_command(gateway, "agents", "list")).lines == listed
            assert listed[0].startswith(f"{AGENT}  ready  paused  ")
            (shown,) = [
                one
                for one in (await run_command(gateway, "tasks", "show", waiting[3])).lines
                if one.startswith("status ")
            ]
            assert "queued since " in shown
            explained = (await run_command(gateway, "tasks", "explain", waiting[3])).out
            assert f"agent '{AGENT}' is paused (it is being moved)" in explained
            assert "3 wait before it" in explained
            assert peer.texts == []
            (line,) = (await run_command(gateway, "agents", "resume", AGENT)).lines
            assert line.startswith(f"{AGENT}  active")
            for name in waiting:
                task = await caller.await_end(name)
                assert task["status"]["state"] == "TASK_STATE_COMPLETED"
            assert peer.texts == texts
            assert len({str(one["messageId"]) for one in peer.messages}) == len(texts)


async def test_queue_killed_while_it_drains_continues(tmp_path: Path) -> None:
    """Killed in the middle of a queue: each message reaches its agent, in order, and none twice."""
    texts = [f"echo number {number}" for number in range(30)]
    async with (
        ScriptedPeer(AGENT) as peer,
        run_gateway(tmp_path, {AGENT: {"url": peer.url, "timeout": {"arrival": "1s"}}}) as gateway,
    ):
        assert (await run_command(gateway, "agents", "pause", AGENT)).lines
        async with open_caller(gateway) as caller:
            waiting = [(await caller.send(text))["id"] for text in texts]
            peer.hold()
            assert (await run_command(gateway, "agents", "resume", AGENT)).lines
            await wait_until(lambda: peer.texts, 10, "the first one is at the agent")
            gateway.kill()
            peer.release_all()
            await gateway.start()
            for name in waiting:
                task = await caller.await_end(name, within_s=40)
                assert task["status"]["state"] == "TASK_STATE_COMPLETED"
        ids = [str(one["messageId"]) for one in peer.messages]
        assert len(set(ids)) == len(texts)


@pytest.mark.requirement("TR-8", "MK-6")
async def test_queue_of_a_busy_agent_survives_a_kill_with_its_order(tmp_path: Path) -> None:
    """One slot, taken when the gateway dies: waiting tasks run by priority, then by time, each message once."""
    agent: JsonObject = {"limits": {"concurrency": 1}, "timeout": {"arrival": "1s"}}
    wanted = [("echo a", 0), ("echo b", -5), ("echo c", 7), ("echo d", 0), ("echo e", 7)]
    async with (
        ScriptedPeer(AGENT) as peer,
        run_gateway(tmp_path, {AGENT: {"url": peer.url, **agent}}) as gateway,
        open_caller(gateway) as caller,
    ):
        peer.hold()
        names: list[str] = []
        for text, priority in [("echo first", 0), *wanted]:
            body = {"agent": AGENT, "objective": text, "priority": priority}
            made = await caller.http.post("/v1/tasks", json=body)
            names.append(made.json()["task"]["taskId"])
            started = await caller.http.post(f"/v1/tasks/{names[-1]}/start")
            assert started.is_success, started.text
        await wait_until(lambda: peer.texts == ["echo first"], 10, "one is at the agent")
        for name in names[1:]:
            assert (await caller.read_record(name))["status"] == "queued"
        gateway.kill()
        peer.release_all()
        await gateway.start()
        for name in names:

            async def is_done(name: str = name) -> bool:
                return bool((await caller.read_record(name))["status"] == "completed")

            await wait_until(is_done, 40, f"{name} is completed")
        assert peer.texts == ["echo first", "echo c", "echo e", "echo a", "echo d", "echo b"]
        assert peer.most_sends == 1
