"""The owner of a gateway sees work done for others, from the command line."""

from __future__ import annotations

from typing import TYPE_CHECKING

import httpx
import pytest

from passerelle.gateway.auth.keys import hash_key
from passerelle.runtime.common.secret import Secret
from tests.e2e.test_watch import compose, pipe
from tests.support.command import run_command
from tests.support.processes import AGENT, run_gateway
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from pathlib import Path

    from passerelle.demo.processes import GatewayProcess
    from tests.support.scripted_peer import ScriptedPeer

pytestmark = pytest.mark.anyio


async def test_the_owner_lists_and_shows_the_tasks_of_a_program(
    peer: ScriptedPeer, tmp_path: Path
) -> None:
    client = {
        "name": "planner",
        "key_hash": hash_key(Secret("planner-key")),
        "scopes": ["a2a:call", "tasks:read", "tasks:write"],
        "may_call": ["*"],
    }
    async with run_gateway(tmp_path, {AGENT: peer.url}, clients=[client]) as gateway:
        headers = {"Authorization": "Bearer planner-key"}
        async with httpx.AsyncClient(base_url=gateway.url, headers=headers, timeout=20) as http:
            body = {"agent": AGENT, "objective": "count the boats", "title": "Boats"}
            made = await http.post("/v1/tasks", json=body)
            assert made.is_success, made.text
            task = str(made.json()["task"]["taskId"])
            assert (await http.get("/v1/tasks?owners=all")).status_code == httpx.codes.FORBIDDEN
        assert (await run_command(gateway, "tasks", "list")).lines[-1] == "tasks: 0"

        async def is_listed() -> bool:
            listed = await run_command(gateway, "tasks", "list", "--all-owners")
            return any(line.startswith(task) and "planner" in line for line in listed.lines)

        await wait_until(is_listed, 20, "the list of all owners has it")
        shown = await run_command(gateway, "tasks", "show", task)
        assert f"task     {task}" in shown.lines
        for words, place in ((("--find", "boats", "--all-owners"), 1), (("--find", task), 0)):
            found = await run_command(gateway, "tasks", "list", *words)
            assert found.lines[-1] == f"tasks: {place}"
            assert (found.lines[0].startswith("no task of yours has this id or title")) == (
                not place
            )
        overview = await run_command(gateway, "overview")
        said = [line.split() for line in overview.lines]
        assert said[0] == ["tasks", "1", "open"]
        assert ["by", "agent", AGENT, "1"] in said
        assert max(map(len, overview.lines)) <= 80
        waiting = await run_command(gateway, "approvals", "list", "--all-owners")
        assert waiting.lines == ["approvals: 0 pending"]
        await watch_all(gateway, tmp_path, task)
        refused = await run_command(gateway, "tasks", "start", task)
        assert refused.status != 0
        assert f"there is no task '{task}'" in refused.err
        async with httpx.AsyncClient(base_url=gateway.url, headers=gateway.authorization) as http:
            facts = (await http.get("/v1/audit")).json()["facts"]
        reads = [fact["fact"]["payload"].get("of") for fact in facts]
        assert {"tenant:default", task} <= {*reads}


async def watch_all(gateway: GatewayProcess, folder: Path, task: str) -> None:
    """The owner sees the start and end of a program's tasks without polling."""
    headers = {"Authorization": "Bearer planner-key"}
    async with (
        httpx.AsyncClient(base_url=gateway.url, headers=headers, timeout=20) as http,
        pipe(compose(gateway, "--all-owners"), folder) as watch,
    ):
        assert (await watch.until("taskId", task))["owner"] == "planner"
        made = await http.post("/v1/tasks", json={"agent": AGENT, "objective": "silent"})
        other = str(made.json()["task"]["taskId"])
        assert (await watch.until("taskId", other))["owner"] == "planner"
        assert (await http.post(f"/v1/tasks/{other}/cancel", json={})).is_success
        last = await watch.until("status", "cancelled")
        assert (last["taskId"], last["owner"]) == (other, "planner")
        assert watch.process.returncode is None
    wrong = await run_command(gateway, "tasks", "watch", task, "--all-owners")
    assert wrong.status != 0
    assert "for all tasks" in wrong.err
