"""``passerelle subagents`` against a running gateway with a real agent."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from passerelle.cli.exit_status import ExitStatus
from passerelle.demo.processes import GatewayProcess
from tests.support.command import run_command
from tests.support.processes import AGENT, run_gateway
from tests.support.scripted_peer import ScriptedPeer
from tests.support.scripted_tasks import Turn
from tests.support.waiting import wait_until

pytestmark = pytest.mark.anyio


@pytest.mark.requirement("CMD-19", "CMD-24", "CMD-27")
async def test_subagent_is_spawned_awaited_messaged_and_closed(
    gateway: GatewayProcess, peer: ScriptedPeer
) -> None:
    words = ("subagents", "spawn", AGENT, "ask which")
    made = await run_command(gateway, *words, "--key", "one", "--title", "A look")
    subagent, outcome, task = made.lines[0].split("  ")
    assert outcome == "spawned"
    again = await run_command(gateway, *words, "--key", "one", "--title", "A look")
    assert again.lines[0] == f"{made.lines[0]}  as before"
    waited = await run_command(gateway, "subagents", "wait", subagent, "--timeout", "20s")
    assert (waited.status, waited.lines) == (0, [f"{subagent}  waiting"])
    sent = await run_command(gateway, "subagents", "send", subagent, "the second")
    assert sent.lines[0].split("  ") == [subagent, "sent", task]
    waited = await run_command(gateway, "subagents", "wait", subagent, "--mode", "any")
    assert waited.lines == [f"{subagent}  idle"]
    listed = await run_command(gateway, "subagents", "list", "--task", task, "-o", "name")
    assert listed.lines == [subagent]
    shown = (await run_command(gateway, "subagents", "show", subagent)).out
    assert task in shown
    late = await run_command(gateway, "subagents", "spawn", AGENT, "slow 60")
    slow = late.lines[0].split("  ")[0]
    timed_out = await run_command(gateway, "subagents", "wait", slow, "--timeout", "0s")
    assert (timed_out.status, timed_out.out.splitlines()[-1]) == (1, "timed out")
    for name in (subagent, slow):
        closed = await run_command(gateway, "subagents", "close", name, "--reason", "enough")
        assert closed.lines[0].startswith(f"{name}  closed")
    kinds = [
        line.split("  ")[2]
        for line in (await run_command(gateway, "subagents", "events", subagent)).lines
    ]
    assert [kind for kind in kinds if kind != "subagent.status"] == [
        "subagent.spawned",
        "subagent.input",
        "subagent.completed",
        "subagent.closed",
    ]
    refused = await run_command(gateway, "subagents", "send", subagent, "more")
    assert refused.status == ExitStatus.CALLER
    wrong = await run_command(gateway, "subagents", "list")
    assert wrong.status != 0
    assert peer.texts == ["ask which", "the second", "slow 60"]


@pytest.mark.requirement("CMD-19", "PRS-6")
async def test_subagent_continues_after_its_gateway_was_killed(tmp_path: Path) -> None:
    go = asyncio.Event()

    async def hold(turn: Turn) -> None:
        await turn.status("WORKING")
        await go.wait()
        await turn.status("COMPLETED")

    async with (
        ScriptedPeer(AGENT) as peer,
        run_gateway(tmp_path, {AGENT: peer.url}) as gateway,
    ):
        peer.on("hold", hold)
        made = await run_command(gateway, "subagents", "spawn", AGENT, "hold on", "-o", "name")
        (subagent,) = made.lines

        async def is_at_work() -> bool:
            shown = await run_command(gateway, "subagents", "show", subagent)
            return "recoverable" in shown.out

        await wait_until(is_at_work, 20, "the agent has named its task")
        gateway.kill()
        await gateway.start()
        resumed = await run_command(gateway, "subagents", "resume", subagent)
        assert resumed.lines[0].split("  ")[1] in {"attached", "elsewhere"}
        go.set()
        waited = await run_command(gateway, "subagents", "wait", subagent, "--timeout", "30s")
        assert (waited.status, waited.lines) == (0, [f"{subagent}  idle"])
        closed = await run_command(gateway, "subagents", "close", subagent)
        assert closed.lines[0].startswith(f"{subagent}  closed")
        assert peer.texts == ["hold on"]
