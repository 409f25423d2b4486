"""A gateway with many open runs is killed, engine included, and restarted.

It is ready soon, resumes every run, and never exceeds its limit of concurrent calls at the agent. Then the agent ends
all tasks, and each one completes.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, cast

import httpx
import orjson
import yaml

from passerelle.demo.processes import GatewayProcess, start
from tests.chaos.site import ROOT
from tests.support.ports import find_free_port
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from passerelle.core.wire.json import JsonObject

AGENT: Final = "light"
LIMIT: Final = 16
"""Limit of concurrent calls to the agent."""
READY_S: Final = 10.0
_CALLERS: Final = 12
_PER_RUN_S: Final = 0.04
_PATIENCE_S: Final = 30.0
_DRIVES_NONE: Final = "passerelle_runs_driven 0.0"
_WORKING: Final = "TASK_STATE_WORKING"


@dataclass(slots=True)
class Scene:
    """The gateway, and the agent's statistics page."""

    gateway: GatewayProcess
    agent_url: str
    http: httpx.AsyncClient

    async def open_runs(self, runs: int) -> list[str]:
        """Begins tasks that stay open; returns the answers of those that did not begin."""
        numbers = iter(range(runs))
        refused: list[str] = []

        async def call() -> None:
            for number in numbers:
                params = compose_send(number)
                body = {"jsonrpc": "2.0", "id": 1, "method": "SendMessage", "params": params}
                url = f"{self.gateway.url}/agents/{AGENT}"
                answer = await self.http.post(url, json=body, headers=self._headers)
                if "result" not in answer.json():
                    refused.append(answer.text)

        await asyncio.gather(*(call() for _ in range(_CALLERS)))
        return refused

    async def read_stats(self) -> dict[str, Any]:
        """The agent's statistics."""
        return cast("dict[str, Any]", (await self.http.get(f"{self.agent_url}/stats")).json())

    async def post(self, path: str) -> None:
        """Sends ``reset`` or ``finish`` to the agent."""
        await self.http.post(f"{self.agent_url}/{path}")

    async def has_driven_all(self) -> bool:
        """Whether the gateway drives no more runs: cheap enough for polling."""
        try:
            found = (await self.http.get(f"{self.gateway.url}/metrics")).text
        except httpx.TimeoutException:
            return False  # ten thousand tasks end at once
        return _DRIVES_NONE in found.splitlines()

    async def count_working(self) -> int:
        """Number of working tasks according to the gateway."""
        asked = {"status": _WORKING, "pageSize": "1"}
        url = f"{self.gateway.url}/agents/{AGENT}/tasks"
        answer = await self.http.get(url, params=asked, headers=self._headers)
        return int(answer.json()["totalSize"])

    @property
    def _headers(self) -> dict[str, str]:
        return {**self.gateway.authorization, "A2A-Version": "1.0"}


def compose_send(number: int) -> JsonObject:
    """A message whose caller does not wait."""
    return {
        "message": {
            "messageId": f"m-{number}",
            "role": "ROLE_USER",
            "parts": [{"text": f"run {number}"}],
        },
        "configuration": {"returnImmediately": True},
    }


@asynccontextmanager
async def _open_scene(folder: Path) -> AsyncGenerator[Scene]:
    agent = start(AGENT, ("bench.light_peer",), folder, {"PYTHONPATH": str(ROOT)})
    try:
        url = str(orjson.loads(await agent.read_line("{"))["url"])
        config = folder / "passerelle.yaml"
        agents = [{"name": AGENT, "url": url, "limits": {"concurrency": LIMIT}}]
        config.write_text(yaml.safe_dump({"agents": agents}), encoding="utf-8")
        gateway = GatewayProcess(
            folder, config, environ={"PASSERELLE_LOG_FORMAT": "json"}, port=find_free_port()
        )
        async with httpx.AsyncClient(timeout=60, trust_env=False) as http:
            try:
                await gateway.start()
                yield Scene(gateway, url, http)
            finally:
                await gateway.stop()
    finally:
        agent.kill()


async def reopen(folder: Path, runs: int) -> list[str]:
    """Prints the times; returns one line per fault found."""
    patience_s = _PATIENCE_S + runs * _PER_RUN_S
    faults: list[str] = []
    async with _open_scene(folder) as scene:
        refused = await scene.open_runs(runs)
        faults += [f"restart: {len(refused)} runs were not begun: {refused[0]}"] if refused else []
        scene.gateway.kill()
        await scene.post("reset")
        began_s = time.monotonic()
        await scene.gateway.start()
        ready_s = time.monotonic() - began_s

        async def are_followed() -> bool:
            return int((await scene.read_stats())["asked"]) >= runs - len(refused)

        try:
            await wait_until(are_followed, patience_s, f"{runs} runs are taken up again")
            again_s = time.monotonic() - began_s
            stats = await scene.read_stats()
            most = int(stats["mostInFlight"])
            print(
                f"chaos: restart with {runs} open runs: ready after {ready_s:.1f} s, all of them taken up again after"
                f" {again_s:.1f} s, at most {most} calls under way at the agent, which takes {LIMIT}",
                flush=True,
            )
            await scene.post("finish")
            await wait_until(scene.has_driven_all, patience_s, f"{runs} tasks complete")
            if left := await scene.count_working():
                faults.append(f"restart: {left} tasks are still working without a driver")
        except (AssertionError, httpx.TimeoutException) as error:
            found = f"{error!r}; the agent has {await scene.read_stats()}"
            return [*faults, f"restart: ready after {ready_s:.1f} s, then {found}"]
    if ready_s > READY_S:
        faults.append(f"restart: ready after {ready_s:.1f} s")
    if most > LIMIT:
        faults.append(f"restart: {most} calls under way at an agent that takes {LIMIT}")
    if stats["repeated"]:
        faults.append(f"restart: {stats['repeated']} messages reached the agent twice")
    return faults
