"""``passerelle tasks explain`` states in one sentence what a task waits for, or why its outcome is unknown."""

from __future__ import annotations

import pytest

from passerelle.demo.processes import GatewayProcess
from tests.support.command import run_command
from tests.support.processes import Caller
from tests.support.scripted_peer import ScriptedPeer, ScriptedResponse
from tests.support.scripted_tasks import Turn

pytestmark = pytest.mark.anyio


async def explain(gateway: GatewayProcess, task_id: str, about: str) -> str:
    """The only line of its kind."""
    reported = await run_command(gateway, "tasks", "explain", task_id)
    (line,) = [line for line in reported.lines if line.startswith(f"{about} ")]
    return line


async def test_busy_agent(gateway: GatewayProcess, caller: Caller, peer: ScriptedPeer) -> None:
    peer.answer_next(ScriptedResponse(429, headers={"Retry-After": "600"}))
    task = await caller.send("hello")
    assert task["status"]["state"] == "TASK_STATE_WORKING"
    said = await explain(gateway, task["id"], "waiting")
    assert "takes no more work for now (HTTP 429)" in said
    assert "the message was not accepted; it is retried at" in said
    assert "and can be cancelled" in said
    blocked = await explain(gateway, task["id"], "blocked")
    assert blocked.removeprefix("blocked").strip().startswith("dependency agent:")
    assert "; until 20" in blocked
    shown = (await run_command(gateway, "tasks", "show", task["id"])).lines
    (waits,) = [line for line in shown if line.startswith("waits")]
    assert waits.split()[1:3] == blocked.split()[1:3]
    await run_command(gateway, "tasks", "cancel", task["id"])
    shown = (await run_command(gateway, "tasks", "show", task["id"])).lines
    assert not [line for line in shown if line.startswith("waits")]
    assert peer.count("SendMessage") == 1


async def test_unknown_outcome(gateway: GatewayProcess, caller: Caller, peer: ScriptedPeer) -> None:
    async def vanish(turn: Turn) -> None:
        await turn.drop()

    peer.lists = False
    peer.next(vanish)
    task = await caller.send("hello")
    peer.lists = True
    assert task["status"]["state"] == "TASK_STATE_FAILED"
    said = await explain(gateway, task["id"], "end")
    assert "it is unknown whether agent" in said
    assert "it has no list of tasks to look in" in said
    assert "Check at the agent first" in said
    assert "retry the task" in said
    assert peer.count("SendMessage") == 1
