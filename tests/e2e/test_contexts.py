"""Login to a gateway, short ids and output formats, as a user on another machine sees them."""

from __future__ import annotations

import asyncio
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest

from passerelle.cli.exit_status import ExitStatus
from passerelle.demo.processes import GatewayProcess, run_peers
from tests.support.processes import run_gateway
from tests.support.terminal import open_terminal, read_screen
from tests.support.waiting import wait_until

# Many programs start one after another, and each may have to wait for others.
pytestmark = [pytest.mark.anyio, pytest.mark.timeout(300)]
COMMAND: Final = Path(sys.executable).with_name("passerelle")


async def run(home: Path, *words: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
    """A command of a user with nothing but a HOME."""
    return await asyncio.to_thread(_run, home, words, stdin)


def _run(home: Path, words: tuple[str, ...], stdin: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [COMMAND, *words],
        cwd=home,
        env={"PATH": os.environ["PATH"], "HOME": str(home)},
        input=stdin,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


async def open_in_terminal(gateway: GatewayProcess, *words: str) -> str:
    """The complete terminal output of a command."""
    reported = ("--url", gateway.url, "--data-dir", str(gateway.data_dir))
    drawn: list[str] = []
    with open_terminal([str(COMMAND), *words, *reported], gateway.folder) as (process, terminal):
        await wait_until(
            lambda: (read_screen(terminal, drawn), process.poll() is not None)[1], 60, "it ends"
        )
        return read_screen(terminal, drawn)


async def test_logged_in_user_needs_no_flag(tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir()
    async with (
        run_peers(("echo",), tmp_path) as peers,
        run_gateway(tmp_path, {"echo": peers["echo"].url}) as gateway,
    ):
        refused = await run(home, "login", gateway.url, stdin="psr_wrong")
        assert refused.returncode == ExitStatus.FORBIDDEN
        assert (await run(home, "contexts", "list")).stdout == "contexts: 0\n"
        made = await run(home, "login", gateway.url, "--name", "team", stdin=gateway.token)
        said = f"logged in to {gateway.url} as context team; agents: 1\n"
        assert (made.returncode, made.stdout) == (0, said)
        assert gateway.token not in made.stdout + made.stderr
        assert (await run(home, "call", "echo", "hello")).stdout == "hello\n"
        shown = await run(home, "contexts", "show")
        assert shown.stdout == f"{gateway.url}  (context team, current)\n"
        named = (await run(home, "tasks", "list", "-o", "name")).stdout.split()
        assert len(named) == 1
        short = await run(home, "tasks", "show", named[0][-8:], "-o", "name")
        assert short.stdout.split() == named
        absent = await run(home, "tasks", "show", "zzzzzz99")
        assert absent.returncode == ExitStatus.NOT_FOUND
        as_yaml = await run(home, "tasks", "list", "-o", "yaml")
        assert f"taskId: {named[0]}" in as_yaml.stdout
        drawn = await open_in_terminal(gateway, "tasks", "list")
        assert re.search(r"  echo +\d+[smh] ", drawn), drawn
        assert (await run(home, "logout")).stdout == "logged out of team\n"
        gone = await run(home, "--gateway", "team", "tasks", "list")
        assert gone.returncode == ExitStatus.CALLER
        assert "has no context 'team'" in gone.stderr
