"""``passerelle tasks watch`` in use: in a terminal, in a pipe, and through a restart of the gateway."""

from __future__ import annotations

import asyncio
import json
import os
import re
import subprocess
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

import pytest

from passerelle.cli.exit_status import ExitStatus
from passerelle.demo.processes import GatewayProcess
from tests.support.command import run_command
from tests.support.processes import AGENT, Caller, run_gateway
from tests.support.scripted_peer import ScriptedPeer
from tests.support.terminal import open_terminal, read_screen
from tests.support.waiting import wait_until

pytestmark = pytest.mark.anyio

COMMAND: Final = str(Path(sys.executable).with_name("passerelle"))
WITHIN_S: Final = 20.0


def compose(gateway: GatewayProcess, *words: str) -> list[str]:
    options = ("--url", gateway.url, "--data-dir", str(gateway.data_dir))
    return [COMMAND, "tasks", "watch", *words, *options]


async def test_a_terminal_shows_states_and_rates_until_the_task_has_ended(
    gateway: GatewayProcess, peer: ScriptedPeer, caller: Caller
) -> None:
    peer.hold()
    accepted = await run_command(gateway, "tasks", "send", AGENT, "chunks 5")
    task_id = accepted.lines[0].split("  ")[0]
    drawn: list[str] = []
    with open_terminal(compose(gateway, task_id), gateway.folder) as (watch, terminal):

        def shows(words: str) -> bool:
            return re.search(words, read_screen(terminal, drawn)) is not None

        await wait_until(lambda: shows(rf"TASK[^/]*{task_id}"), WITHIN_S, "the table is drawn")
        peer.release(4)
        await wait_until(lambda: shows(rf"{task_id} +{AGENT} +running"), WITHIN_S, "it runs")
        await wait_until(lambda: shows(r"\d chunks +[0-9]*\.[1-9]/s"), WITHIN_S, "it has a rate")
        assert watch.poll() is None
        peer.release_all()
        await wait_until(lambda: shows(rf"{task_id} .* completed"), WITHIN_S, "its end is shown")
        await wait_until(lambda: watch.poll() is not None, WITHIN_S, "the command ends")
        assert watch.returncode == ExitStatus.DONE
        await wait_until(lambda: shows("1 completed"), WITHIN_S, "the last picture stays")
        await wait_until(
            lambda: read_screen(terminal, drawn) and drawn[-1].rstrip().endswith("\x1b[?25h"),
            WITHIN_S,
            "the cursor is given back",
        )
    await caller.await_end(task_id)


class Piped:
    """The command in a pipe: one line for each change."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.process = process
        self.lines: list[dict[str, Any]] = []

    async def until(self, member: str, value: str) -> dict[str, Any]:
        """Reads up to the next line with that value."""
        assert self.process.stdout is not None
        async with asyncio.timeout(WITHIN_S):
            while line := await self.process.stdout.readline():
                self.lines.append(json.loads(line))
                if value in str(self.lines[-1].get(member)):
                    return self.lines[-1]
        raise AssertionError(f"it ended without {member}={value}: {self.lines}")


@asynccontextmanager
async def pipe(command: list[str], folder: Path) -> AsyncGenerator[Piped]:
    environ = {"PATH": os.environ["PATH"], "HOME": str(folder)}
    process = await asyncio.create_subprocess_exec(
        *command, "--json", cwd=folder, env=environ, stdout=asyncio.subprocess.PIPE
    )
    try:
        yield Piped(process)
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


async def test_lines_continue_after_a_restart_of_the_gateway(tmp_path: Path) -> None:
    async with ScriptedPeer(AGENT) as peer, run_gateway(tmp_path, {AGENT: peer.url}) as gateway:
        peer.hold()
        accepted = await run_command(gateway, "tasks", "send", AGENT, "chunks 3")
        task_id = accepted.lines[0].split("  ")[0]
        async with pipe(compose(gateway, task_id), tmp_path) as watch:
            await watch.until("taskId", task_id)
            await gateway.stop()
            await watch.until("link", "no gateway, next try in ")
            await gateway.start()
            await watch.until("link", "connected again")
            peer.release_all()
            last = await watch.until("status", "completed")
            assert await watch.process.wait() == ExitStatus.DONE
        sequences = [line["sequence"] for line in watch.lines if line.get("sequence")]
        assert sequences == sorted(set(sequences))
        record = (await run_command(gateway, "tasks", "show", task_id, "--json")).answer
        assert record["status"] == "completed"
        assert sequences[0] < last["sequence"] <= record["last"]


async def test_open_and_new_tasks_are_watched(gateway: GatewayProcess, peer: ScriptedPeer) -> None:
    async def begin() -> str:
        sent = await run_command(gateway, "tasks", "send", AGENT, "silent")
        return sent.lines[0].split("  ")[0]

    del peer
    first = await begin()
    async with pipe(compose(gateway), gateway.folder) as watch:
        await watch.until("taskId", first)
        second = await begin()
        await watch.until("taskId", second)
        await run_command(gateway, "tasks", "cancel", second)
        assert (await watch.until("status", "cancelled"))["taskId"] == second
        assert watch.process.returncode is None
    await run_command(gateway, "tasks", "cancel", first)


async def test_session_is_watched_to_its_end_and_a_failure_is_reported(
    gateway: GatewayProcess, peer: ScriptedPeer
) -> None:
    del peer
    opened = await run_command(gateway, "sessions", "open", "Watched")
    session_id = opened.lines[0].split("  ")[0]
    created = await run_command(
        gateway, "tasks", "create", AGENT, "fail badly", "--session", session_id
    )
    async with pipe(compose(gateway, "--session", session_id), gateway.folder) as watch:
        await watch.until("status", "accepted")
        await run_command(gateway, "tasks", "start", created.lines[0].split("  ")[0])
        failed = await watch.until("status", "failed")
        assert failed["sessionId"] == session_id
        assert await watch.process.wait() == ExitStatus.REMOTE


async def test_unknown_task_is_an_error(gateway: GatewayProcess) -> None:
    absent = "task_00" + "0" * 26
    for words, said in (
        ((absent,), f"there is no task '{absent}'"),
        (("--session", "se_1"), "there is no session 'se_1'"),
    ):
        done = await run_command(gateway, "tasks", "watch", *words)
        assert done.status == ExitStatus.NOT_FOUND
        assert done.err.startswith(f"passerelle: error: {said}")
    away = await asyncio.to_thread(
        subprocess.run,
        [*compose(gateway), "--url", "http://127.0.0.1:9", "--patience", "0"],
        capture_output=True,
        text=True,
        timeout=WITHIN_S,
        check=False,
    )
    assert away.returncode == ExitStatus.REMOTE
    assert "the gateway has been unavailable for " in away.stderr
