"""The environment of the demo: a folder, three sample agents, and a gateway in front of them."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator
from dataclasses import dataclass
from pathlib import Path
from typing import Final, cast

import httpx
import yaml

from passerelle.core.wire.json import JsonObject
from passerelle.demo.checks import Checks
from passerelle.demo.processes import GatewayProcess, PeerProcess, run_peers

PEERS: Final = ("echo", "report", "payments")
CONFIG: Final = "passerelle.yaml"
_TIMEOUT_S: Final = 10.0


@dataclass(frozen=True, slots=True)
class Stage:
    """A running gateway and its agents."""

    folder: Path
    peers: dict[str, PeerProcess]
    gateway: GatewayProcess
    checks: Checks

    def find_agent(self, name: str) -> str:
        """Returns the URL at which the gateway serves an agent."""
        return f"{self.gateway.url}/agents/{name}"

    async def read(self, path: str) -> JsonObject:
        """Reads one path of the control plane, as the owner."""
        async with httpx.AsyncClient(
            base_url=self.gateway.url,
            headers=self.gateway.authorization,
            timeout=_TIMEOUT_S,
            trust_env=False,
        ) as http:
            answer = await http.get(path)
            return cast("JsonObject", answer.raise_for_status().json())

    async def find_session(self, task_id: str) -> str:
        """Returns the session of a task."""
        return str((await self.read(f"/v1/tasks/{task_id}"))["sessionId"])


@contextlib.asynccontextmanager
async def set_stage(folder: Path, checks: Checks) -> AsyncGenerator[Stage]:
    """Starts the agents and the gateway; every process has ended afterwards, whether or not the demo failed."""
    async with run_peers(PEERS, folder) as peers:
        agents = [{"name": peer.name, "url": peer.url} for peer in peers.values()]
        config = folder / CONFIG
        config.write_text(yaml.safe_dump({"agents": agents}), encoding="utf-8")
        gateway = GatewayProcess(folder, config)
        try:
            await gateway.start()
            yield Stage(folder, peers, gateway, checks)
        finally:
            await gateway.stop()
