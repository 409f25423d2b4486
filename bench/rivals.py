"""The same unary work through other A2A gateways, in the same run and in front of the same agent.

None of them stores the task, so they do less than the gateway that they are compared with. Each has a separate
environment below ``bench/peers``, installed from a lock with hashes; ``PEERS=all`` installs the missing ones.
"""

from __future__ import annotations

import asyncio
import secrets
import subprocess
import sys
from collections.abc import AsyncGenerator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import httpx
import yaml

from bench.channel_servers import find_free_port
from bench.kinds import CALLERS, TASK_ORDER, WARM_S, RoundPlan
from bench.load import LoadOrder
from bench.rows import MeasurementError, Row, Spread
from bench.testbed import GatewaySetup, RoundResult, Testbed, open_testbed
from bench.usage import CpuMeter, find_children
from passerelle.core.wire.json import JsonObject
from passerelle.demo.checks import wait_for
from passerelle.demo.processes import Child, launch

HOME: Final = Path(__file__).resolve().parent / "peers"
_READY_WITHIN_S: Final = 120.0
_INSTALL_WITHIN_S: Final = 900.0
_AGENT: Final = "echo"


@dataclass(frozen=True, slots=True)
class RivalEndpoint:
    """The URL at which a rival serves the agent, and the keys of its callers, if any."""

    url: str
    keys: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class RivalLaunch:
    """How a rival is started: its program with arguments, its environment, and its readiness check."""

    command: tuple[str, ...]
    environ: dict[str, str]
    ready: str
    endpoint: RivalEndpoint
    registration: tuple[str, JsonObject] | None = None
    """A path and a body that register the agent, for a rival without a configuration file for it."""


@dataclass(frozen=True, slots=True)
class Rival:
    """Another gateway. ``prepare`` gets the agent's URL, a free port and a folder to write to."""

    name: str
    folder: str
    prepare: Callable[[str, int, Path], RivalLaunch]

    @property
    def home(self) -> Path:
        """The folder of its lock."""
        return HOME / self.folder

    @property
    def is_installed(self) -> bool:
        """Whether its environment is complete."""
        return (self.home / ".venv" / "ready").exists()


def _prepare_litellm(agent_url: str, port: int, folder: Path) -> RivalLaunch:
    key = f"sk-{secrets.token_hex(16)}"
    card: JsonObject = {
        "protocolVersion": "1.0",
        "name": _AGENT,
        "description": "echo",
        "url": f"{agent_url}/",
        "version": "1.0.0",
        "defaultInputModes": ["text"],
        "defaultOutputModes": ["text"],
        "capabilities": {"streaming": True},
        "skills": [],
    }
    config = folder / "litellm.yaml"
    agent: JsonObject = {"agent_name": _AGENT, "agent_card_params": card, "litellm_params": {}}
    text = yaml.safe_dump({"general_settings": {"master_key": key}, "agent_list": [agent]})
    config.write_text(text, encoding="utf-8")
    program = str(HOME / "litellm" / ".venv" / "bin" / "litellm")
    return RivalLaunch(
        (program, "--config", str(config), "--host", "127.0.0.1", "--port", str(port)),
        {"LITELLM_LOG": "ERROR"},
        "/health/liveliness",
        RivalEndpoint(f"http://127.0.0.1:{port}/a2a/{_AGENT}", (key,)),
    )


def _prepare_contextforge(agent_url: str, port: int, folder: Path) -> RivalLaunch:
    """Without authentication, which favours it: its tokens cost a database read each."""
    program = str(HOME / "contextforge" / ".venv" / "bin" / "mcpgateway")
    environ = {
        "DATABASE_URL": f"sqlite:///{folder / 'contextforge.db'}",
        "AUTH_REQUIRED": "false",
        "ALLOW_UNAUTHENTICATED_ADMIN": "true",
        "MCPGATEWAY_UI_ENABLED": "false",
        "SSRF_PROTECTION_ENABLED": "false",  # the agent is on loopback
        "RATE_LIMITING_ENABLED": "false",  # 500 requests a minute otherwise
        "LOG_LEVEL": "ERROR",
        "HOST": "127.0.0.1",
        **{
            name: f"Aa1-{secrets.token_hex(24)}"
            for name in (
                "JWT_SECRET_KEY",
                "AUTH_ENCRYPTION_SECRET",
                "BASIC_AUTH_PASSWORD",
                "PLATFORM_ADMIN_PASSWORD",
            )
        },
    }
    agent: JsonObject = {
        "name": _AGENT,
        "endpoint_url": f"{agent_url}/",
        "agent_type": "jsonrpc",
        "protocol_version": "1.0",
        "auth_type": "none",
    }
    return RivalLaunch(
        (program, "--host", "127.0.0.1", "--port", str(port)),
        environ,
        "/health",
        RivalEndpoint(f"http://127.0.0.1:{port}/a2a/{_AGENT}/jsonrpc"),
        ("/a2a", {"agent": agent, "visibility": "public"}),
    )


RIVALS: Final = (
    Rival("LiteLLM", "litellm", _prepare_litellm),
    Rival("ContextForge", "contextforge", _prepare_contextforge),
)


def install_rivals() -> None:
    """Installs the missing environments from their locks.

    Raises:
        MeasurementError: a package does not install; the text ends with the installer's output.
    """
    for rival in RIVALS:
        if rival.is_installed:
            continue
        print(f"bench: installing {rival.name} into {rival.home / '.venv'}", flush=True)
        environment = rival.home / ".venv"
        _run(sys.executable, "-m", "venv", "--clear", str(environment))
        lock = str(rival.home / "requirements.lock")
        _run(
            str(environment / "bin" / "pip"),
            "install",
            "-q",
            "--no-deps",
            "--require-hashes",
            "-r",
            lock,
        )
        (environment / "ready").touch()


def _run(*command: str) -> None:
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=_INSTALL_WITHIN_S, check=False
    )
    if done.returncode:
        raise MeasurementError(f"{' '.join(command[:3])} … failed: {done.stderr.strip()[-500:]}")


async def measure_rivals(length: RoundPlan) -> AsyncGenerator[Row]:
    """Rows of the section: direct calls, this gateway and the rival take turns."""
    async with open_testbed(GatewaySetup(_AGENT)) as testbed:
        for rival in RIVALS:
            if not rival.is_installed:
                yield Row(f"{rival.name}: not installed, PEERS=all does it", None, "ratio")
                continue
            async with _open_rival(rival, testbed) as (child, running):
                for row in await _compare(testbed, rival, child, running, length):
                    yield row


async def _compare(
    testbed: Testbed, rival: Rival, child: Child, running: RivalEndpoint, length: RoundPlan
) -> list[Row]:
    order = replace(TASK_ORDER, seconds=length.seconds)
    theirs_order = replace(order, url=running.url, keys=running.keys)
    await _run_rival(testbed, child, replace(theirs_order, seconds=WARM_S))
    await testbed.run(replace(TASK_ORDER, seconds=WARM_S), testbed.ours)
    turns: list[tuple[RoundResult, RoundResult, RoundResult]] = []
    for _ in range(length.rounds):
        direct = await testbed.run(order)
        ours = await testbed.run(order, testbed.ours)
        turns.append((direct, ours, await _run_rival(testbed, child, theirs_order)))

    def row(what: str, value: Callable[[RoundResult, RoundResult, RoundResult], float]) -> Row:
        return Row(
            f"{rival.name}, {CALLERS} callers: {what}",
            Spread.of([value(*turn) for turn in turns]),
            "ratio",
        )

    return [
        row("requests/s through it ÷ direct", lambda direct, _, theirs: theirs.rate / direct.rate),
        row(
            "its CPU ÷ agent CPU",
            lambda direct, _, theirs: theirs.gateway_us / direct.agent_us,
        ),
        row("requests/s through us ÷ through it", lambda _, ours, theirs: ours.rate / theirs.rate),
        row(
            "our CPU ÷ its CPU",
            lambda _, ours, theirs: ours.gateway_us / theirs.gateway_us,
        ),
    ]


async def _run_rival(testbed: Testbed, child: Child, order: LoadOrder) -> RoundResult:
    pid = child.process.pid
    meter = CpuMeter((testbed.agent.process.pid, pid, *find_children(pid)))
    before = meter.read()
    outcome = await testbed.load.execute(order)
    used = [late - early for early, late in zip(before, meter.read(), strict=True)]
    if outcome.count == 0:
        raise MeasurementError(f"{order.url}: nothing was answered")
    agent_us = 1e6 * used[0] / outcome.count
    return RoundResult(outcome, agent_us, 1e6 * sum(used[1:]) / outcome.count)


@asynccontextmanager
async def _open_rival(
    rival: Rival, testbed: Testbed
) -> AsyncGenerator[tuple[Child, RivalEndpoint]]:
    async with AsyncExitStack() as stack:
        folder = testbed.ours.process.folder / rival.folder
        folder.mkdir()
        prepared = rival.prepare(testbed.direct_url.rstrip("/"), find_free_port(), folder)
        child = launch(rival.folder, prepared.command, folder, prepared.environ)
        stack.push_async_callback(child.stop)
        base = httpx.URL(prepared.endpoint.url).join("/")
        async with httpx.AsyncClient(base_url=base, timeout=20, trust_env=False) as http:
            await wait_for(
                f"{rival.name} is ready",
                lambda: _is_ready(http, child, prepared.ready),
                _READY_WITHIN_S,
            )
            if prepared.registration is not None:
                path, body = prepared.registration
                (await http.post(path, json=body)).raise_for_status()
        yield child, prepared.endpoint


async def _is_ready(http: httpx.AsyncClient, child: Child, path: str) -> bool:
    if child.has_ended():
        raise child.explain("ended")
    await asyncio.sleep(
        0.5
    )  # a rival takes many seconds to start, and each check costs it some of them
    try:
        return (await http.get(path)).is_success
    except httpx.HTTPError:
        return False
