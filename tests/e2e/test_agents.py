"""``passerelle agents`` against a running gateway, and the same list over ``/v1``."""

import asyncio
import os
import subprocess
import sys
from pathlib import Path
from typing import Final

import httpx
import pytest

from passerelle.cli.exit_status import ExitStatus
from passerelle.demo.processes import GatewayProcess
from tests.support.processes import AGENT
from tests.support.scripted_peer import ScriptedPeer

COMMAND: Final = Path(sys.executable).with_name("passerelle")


def run(gateway: GatewayProcess, *arguments: str) -> subprocess.CompletedProcess[str]:
    reported = ("--url", gateway.url, "--data-dir", str(gateway.data_dir))
    return subprocess.run(
        [COMMAND, "agents", *arguments, *reported]
        if "show" in arguments
        else [COMMAND, "agents", *reported, *arguments],
        cwd=gateway.folder,
        env={"PATH": os.environ["PATH"], "HOME": str(gateway.folder), "OTHER": "no-token"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


@pytest.mark.anyio
async def test_list_is_the_same_over_http(gateway: GatewayProcess, peer: ScriptedPeer) -> None:
    token = (gateway.data_dir / "owner-token").read_text().strip()
    async with httpx.AsyncClient(base_url=gateway.url, trust_env=False) as http:
        refused = await http.get("/v1/agents")
        headers = {"Authorization": f"Bearer {token}"}
        listed = (await http.get("/v1/agents", headers=headers)).json()["agents"]
        none = (await http.get("/v1/agents?tag=none", headers=headers)).json()
        wrong = await http.get("/v1/agents?skil=x", headers=headers)
    assert refused.status_code == 401
    assert [(agent["name"], agent["status"]) for agent in listed] == [
        (AGENT, "ready"),
        ("unreachable", "unreachable"),
    ]
    assert peer.url not in str(listed)
    assert none == {"agents": []}
    assert (wrong.status_code, wrong.json()["code"]) == (400, "invalid_input")


@pytest.mark.anyio
async def test_command_lists_agents_with_the_token_of_the_data_directory(
    gateway: GatewayProcess, peer: ScriptedPeer
) -> None:
    del peer
    # In a thread, since the agent answers from this loop.
    done = await asyncio.to_thread(run, gateway)
    assert done.stdout.splitlines()[0] == f"{AGENT}  ready  /agents/{AGENT}"
    assert (done.returncode, done.stdout.splitlines()[-1]) == (0, "agents: 2")
    shown = await asyncio.to_thread(run, gateway, "show", AGENT)
    assert (shown.returncode, shown.stdout.split()[:2]) == (0, ["agent", AGENT]), shown.stderr
    absent = await asyncio.to_thread(run, gateway, "show", "nobody")
    assert (absent.returncode, "no agent 'nobody'" in absent.stderr) == (7, True), absent.stderr
    none = await asyncio.to_thread(run, gateway, "--tag", "none")
    assert none.stdout == "agents: 0\n"


@pytest.mark.anyio
async def test_command_reports_errors(gateway: GatewayProcess) -> None:
    refused = run(gateway, "--token-env", "OTHER")
    assert (refused.returncode, "not known" in refused.stderr) == (ExitStatus.FORBIDDEN, True)
    unset = run(gateway, "--token-env", "UNSET")
    assert (unset.returncode, "holds no token" in unset.stderr) == (2, True)
    away = run(gateway, "--url", "http://127.0.0.1:9")
    assert away.stderr.startswith("passerelle: error: no gateway responds at http://127.0.0.1:9")


def run_from_elsewhere(folder: Path, *flags: str, **environ: str) -> str:
    """The output of a command that finds its gateway through the environment only."""
    done = subprocess.run(
        [COMMAND, "agents", *flags],
        cwd=folder,
        env={"PATH": os.environ["PATH"], "HOME": str(folder), "OTHER": "no-token", **environ},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    return done.stdout + done.stderr


@pytest.mark.anyio
async def test_the_environment_names_the_gateway_and_the_token(
    gateway: GatewayProcess, peer: ScriptedPeer, tmp_path_factory: pytest.TempPathFactory
) -> None:
    del peer
    folder = tmp_path_factory.mktemp("elsewhere")
    token = (gateway.data_dir / "owner-token").read_text().strip()
    reported = {"PASSERELLE_URL": gateway.url, "PASSERELLE_TOKEN": token}

    async def ask(*flags: str, **environ: str) -> str:
        return await asyncio.to_thread(run_from_elsewhere, folder, *flags, **environ)

    listed = await ask(**reported)
    assert listed.splitlines()[0] == f"{AGENT}  ready  /agents/{AGENT}"
    assert "is an unknown setting" not in listed
    assert "not known" in await ask("--token-env", "OTHER", **reported)
    unused = "http://127.0.0.1:9"
    assert f"no gateway responds at {unused}" in await ask("--url", unused, **reported)
    assert "PASSERELLE_TOKEN" in await ask(PASSERELLE_URL=gateway.url)
