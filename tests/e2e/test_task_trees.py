"""A task tree on a running gateway: paused and resumed as a whole, and cancelled by a gateway that dies meanwhile."""

from __future__ import annotations

import asyncio
from collections import Counter
from pathlib import Path
from typing import Final

import httpx
import pytest

from passerelle.demo.processes import GatewayProcess
from tests.support.command import run_command
from tests.support.processes import AGENT, Caller, open_caller, read_stored, run_gateway
from tests.support.scripted_peer import ScriptedPeer
from tests.support.waiting import wait_until

pytestmark = pytest.mark.anyio

CHILDREN: Final = 150
STOPPED_WITHIN_S: Final = 40.0
"""The dead gateway's lease, the time until its pending rows are due, and the work."""


async def start(caller: Caller, task_id: str) -> None:
    answer = await caller.http.post(f"/v1/tasks/{task_id}/start", json={})
    assert answer.is_success, answer.text


async def create(caller: Caller, objective: str, **members: object) -> str:
    made = await caller.http.post(
        "/v1/tasks", json={"agent": AGENT, "objective": objective, **members}
    )
    assert made.is_success, made.text
    return str(made.json()["task"]["taskId"])


def count(gateway: GatewayProcess, session: str, kind: str) -> Counter[str]:
    """Number of such facts for each task of a session."""
    events = read_stored(gateway, session)
    return Counter(str(event["taskId"]) for event in events if event["type"] == kind)


@pytest.mark.requirement("GR-11", "CMD-9", "I9")
async def test_every_child_is_cancelled_once_when_the_gateway_is_killed_meanwhile(
    tmp_path: Path,
) -> None:
    async with ScriptedPeer(AGENT) as peer, run_gateway(tmp_path, {AGENT: peer.url}) as gateway:
        async with open_caller(gateway) as caller:
            top = await create(caller, "sail")
            session = str((await caller.read_record(top))["sessionId"])
            children = [
                await create(caller, f"part {n}", parentTaskId=top) for n in range(CHILDREN)
            ]
            working = await create(caller, "silent", parentTaskId=children[-1])
            await start(caller, working)
            await wait_until(lambda: peer.count("SendStreamingMessage"), 15, "one is at work")
            cancel = asyncio.create_task(
                caller.http.post(f"/v1/tasks/{top}/cancel", json={"propagation": "subtree"})
            )
            kind = "task.cancel_requested"
            wanted = await wait_until(lambda: count(gateway, session, kind), 15, "some are to stop")
            gateway.kill()
            assert len(wanted) <= CHILDREN, "they were stopped before the gateway was"
            with pytest.raises(httpx.TransportError):
                await cancel
        await gateway.start()
        async with open_caller(gateway) as caller:
            started = await caller.http.post(f"/v1/tasks/{children[-2]}/start", json={})
            assert started.status_code >= 400, "below a task that is to stop nothing begins"
            late = await caller.http.post(
                "/v1/tasks", json={"agent": AGENT, "objective": "late", "parentTaskId": top}
            )
            assert late.status_code >= 400

            async def are_stopped() -> bool:
                return len(count(gateway, session, "task.cancelled")) == CHILDREN + 2

            await wait_until(are_stopped, STOPPED_WITHIN_S, "all of them are cancelled")
        wishes = count(gateway, session, "task.cancel_requested")
        assert wishes == dict.fromkeys((top, *children, working), 1)
        assert set(count(gateway, session, "task.attempt.started")) == {working}
        assert peer.texts == ["silent"]


@pytest.mark.requirement("CMD-31")
async def test_tree_is_paused_resumed_and_retried_from_the_command_line(
    gateway: GatewayProcess, peer: ScriptedPeer
) -> None:
    del peer
    async with open_caller(gateway) as caller:
        top = await create(caller, "sail")
        child = await create(caller, "fail once", parentTaskId=top)
        paused = await run_command(gateway, "tasks", "pause", top, "--subtree", "--reason", "tea")
        assert paused.lines[0].startswith(f"{top}  paused  ")
        assert paused.lines[1:] == ["tasks: 2"]
        assert (await caller.read_record(child))["status"] == "paused"
        resumed = await run_command(gateway, "tasks", "resume", top, "--subtree")
        assert resumed.lines[1:] == ["tasks: 2"]
        await start(caller, child)

        async def has_failed() -> bool:
            return bool((await caller.read_record(child))["status"] == "failed")

        await wait_until(has_failed, 15, "the child has failed")
        retried = await run_command(gateway, "tasks", "retry", top, "again", "--subtree")
        assert retried.lines[1] == "tasks: 1"
        assert retried.lines[2].startswith(f"{top}  unsupported_operation: ")

        async def is_begun_again() -> bool:
            attempts: list[object] = (await caller.read_record(child))["attempts"]
            return len(attempts) >= 2

        await wait_until(is_begun_again, 15, "the child is tried again")
