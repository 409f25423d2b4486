"""``passerelle schedules`` and ``passerelle jobs`` against a running gateway with a real agent."""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path
from typing import Final

import pytest

from passerelle.cli.exit_status import ExitStatus
from passerelle.demo.processes import GatewayProcess
from tests.support.command import run_command
from tests.support.processes import AGENT
from tests.support.scripted_peer import ScriptedPeer
from tests.support.waiting import wait_until

COMMAND: Final = str(Path(sys.executable).with_name("passerelle"))

pytestmark = pytest.mark.anyio


async def test_a_schedule_is_created_run_held_and_deleted(
    gateway: GatewayProcess, peer: ScriptedPeer
) -> None:
    words = ("schedules", "create", "Tides", AGENT, "echo read the tide")
    done = await run_command(gateway, *words, "--every", "1h", "--jitter", "60s", "--key", "tides")
    schedule, status, _ = done.lines[0].split("  ")
    assert status == "active"
    again = await run_command(gateway, *words, "--every", "1h", "--jitter", "60s", "--key", "tides")
    assert again.lines[0].startswith(schedule)
    assert again.lines[0].endswith("as before")
    listed = (await run_command(gateway, "schedules", "list")).lines
    assert any(line.startswith(schedule) and "every 3600 s" in line for line in listed)
    await run_command(gateway, "schedules", "run", schedule)

    async def has_run() -> bool:
        return (
            "requested  completed"
            in (await run_command(gateway, "schedules", "show", schedule)).out
        )

    await wait_until(has_run, 20, "the schedule has run")
    assert peer.texts == ["echo read the tide"]
    for verb, expected in (("pause", "paused"), ("resume", "active"), ("delete", "deleted")):
        reported = (await run_command(gateway, "schedules", verb, schedule)).lines
        assert reported[0].split("  ")[:2] == [schedule, expected]
    steps = [
        line.split("  ")[2]
        for line in (await run_command(gateway, "schedules", "history", schedule)).lines
    ]
    assert steps == ["created", "requested", "begun", "paused", "resumed", "deleted"]
    refused = await run_command(gateway, "schedules", "run", schedule)
    assert refused.status == ExitStatus.CALLER
    wrong = await run_command(gateway, *words, "--cron", "nine o'clock every day")
    assert wrong.status != 0
    assert "cron" in wrong.err


async def test_a_job_is_submitted_watched_and_retried(
    gateway: GatewayProcess, peer: ScriptedPeer, tmp_path: Path
) -> None:
    lines = tmp_path / "lines.txt"
    lines.write_text("echo one\n\nfail\necho three\n", "utf-8")
    done = await run_command(gateway, "jobs", "submit", "Batch", AGENT, "--inputs", str(lines))
    job = done.lines[0].split("  ")[0]
    watched = await run_command(gateway, "jobs", "watch", job)
    assert watched.status == 1
    assert watched.out.splitlines()[-1] == "failed  completed 2  failed 1"
    table = (await run_command(gateway, "jobs", "results", job)).lines
    assert [line.split()[1] for line in table[1:]] == ["completed", "failed", "completed"]
    assert "echo three" in table[3]
    assert any(line.startswith(job) for line in (await run_command(gateway, "jobs", "list")).lines)
    await run_command(gateway, "jobs", "retry", job, "--item", "2")
    assert (await run_command(gateway, "jobs", "watch", job)).status == 1
    [failed] = (await run_command(gateway, "jobs", "results", job, "--state", "failed")).lines[1:]
    assert failed.split()[:3] == ["2", "failed", "2"]
    shown = (await run_command(gateway, "jobs", "show", job)).out
    assert "completed  2" in shown
    wrong = await run_command(gateway, "jobs", "watch", job, "-o", "name")
    assert wrong.status == ExitStatus.CALLER
    bulk = ("tasks", "bulk", "retry", "--status", "failed", "--agent", AGENT)
    wrong = await run_command(gateway, *bulk, "--expect", "7")
    assert wrong.status == ExitStatus.CALLER
    assert "7 are expected" in wrong.err
    refused = await run_command(gateway, "jobs", "cancel", job)
    assert refused.status == ExitStatus.CALLER
    assert len(peer.texts) == 4


async def test_pipe_gets_each_change_of_a_job_as_a_line_at_once(
    gateway: GatewayProcess, peer: ScriptedPeer
) -> None:
    peer.hold()
    words = ("submit", "Batch", AGENT, "--text", "echo one", "--text", "echo two")
    job = (await run_command(gateway, "jobs", *words)).lines[0].split("  ")[0]
    reported = ("--url", gateway.url, "--data-dir", str(gateway.data_dir))
    watching = await asyncio.create_subprocess_exec(
        COMMAND, "jobs", "watch", job, "--json", *reported, stdout=asyncio.subprocess.PIPE
    )
    assert watching.stdout is not None
    try:
        first = json.loads(await asyncio.wait_for(watching.stdout.readline(), 20))
        assert (first["jobId"], first["status"]) == (job, "running")
        peer.release_all()
        rest = (await asyncio.wait_for(watching.stdout.read(), 20)).splitlines()
        assert json.loads(rest[-1])["status"] == "completed"
        assert await asyncio.wait_for(watching.wait(), 20) == 0
    finally:
        if watching.returncode is None:
            watching.kill()
            await watching.wait()


async def test_a_job_below_a_task_names_it_and_stops_with_it(
    gateway: GatewayProcess, peer: ScriptedPeer
) -> None:
    [parent] = (await run_command(gateway, "tasks", "create", AGENT, "sail", "-o", "name")).lines
    words = ("jobs", "submit", "Ask", AGENT, "--text", "ask which", "--text", "ask who")
    below = ("--concurrency", "1", "--parent", parent, "-o", "name")
    [job] = (await run_command(gateway, *words, *below)).lines
    assert parent in (await run_command(gateway, "jobs", "show", job)).out
    assert job in (await run_command(gateway, "tasks", "show", parent)).out
    await wait_until(lambda: peer.texts == ["ask which"], 20, "the first item is sent")
    await run_command(gateway, "tasks", "cancel", parent, "--subtree")
    watched = await run_command(gateway, "jobs", "watch", job)
    assert (watched.status, watched.out.splitlines()[-1]) == (1, "cancelled  cancelled 2")
    await wait_until(lambda: peer.count("CancelTask") == 1, 20, "the item is stopped")
    assert peer.texts == ["ask which"]
    refused = await run_command(gateway, *words, *below)
    assert refused.status == ExitStatus.CALLER
    assert "cancelled" in refused.err
