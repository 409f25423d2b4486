"""google-adk's unmodified remote agent as a caller of agents behind the gateway."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator
from dataclasses import dataclass
from typing import Any, Final, cast

import aiohttp
import pytest

from passerelle.demo.processes import GatewayProcess
from tests.interop.environments import ADK, require
from tests.interop.scripted_clients import run_agent
from tests.support.loops import SHARED, Backend
from tests.support.processes import run_gateway

CONFIRMATION: Final = "adk_request_confirmation"
ANSWERS_WITHIN_S: Final = 60.0

pytestmark = pytest.mark.anyio


@dataclass(frozen=True, slots=True)
class ClientReply:
    """What the client's user received for one message."""

    texts: list[str]
    calls: list[dict[str, Any]]

    def find_confirmations(self) -> set[str]:
        """The ids of the calls that require confirmation."""
        return {str(call["id"]) for call in self.calls if call["name"] == CONFIRMATION}


@pytest.fixture(scope="module")
def anyio_backend() -> Backend:
    return SHARED


@pytest.fixture(scope="module")
async def agent(anyio_backend: Backend) -> AsyncGenerator[str]:
    """The URL of a google-adk agent, started once."""
    require(ADK)
    async with run_agent("adk", "JSONRPC") as url:
        yield url


@pytest.fixture(scope="module")
async def gateway(
    agent: str, tmp_path_factory: pytest.TempPathFactory
) -> AsyncGenerator[GatewayProcess]:
    """A gateway in front of the agent, started once; it also serves gRPC."""
    folder = tmp_path_factory.mktemp("gateway")
    grpc = {"port": 0, "address": "127.0.0.1:1"}
    async with run_gateway(folder, {"adk": agent}, grpc=grpc) as process:
        yield process


async def count_runs(agent: str) -> int:
    """Number of runs of the agent's tool."""
    async with aiohttp.ClientSession() as http, http.get(f"{agent}/ran") as response:
        return len(await response.json())


async def talk(gateway: GatewayProcess, host: str, *said: str) -> list[ClientReply]:
    """What the client received, message by message."""
    url = gateway.url.replace("127.0.0.1", host)
    card = f"{url}/agents/adk/.well-known/agent-card.json"
    command = (str(ADK / ".venv/bin/python"), str(ADK / "client.py"), card, gateway.token, *said)
    process = await asyncio.create_subprocess_exec(
        *command, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
    )
    try:
        async with asyncio.timeout(ANSWERS_WITHIN_S):
            out, err = await process.communicate()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    assert process.returncode == 0, err.decode()[-2000:]
    return [ClientReply(**cast("dict[str, Any]", one)) for one in json.loads(out)]


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
@pytest.mark.parametrize("streaming", ["none", "sse"])
async def test_client_accepts_the_card_and_receives_text(
    gateway: GatewayProcess, host: str, streaming: str
) -> None:
    [reported] = await talk(gateway, host, streaming, "hello")
    assert reported.texts[-1] == "hello to you"
    assert reported.calls == []


@pytest.mark.parametrize("streaming", ["none", "sse"])
async def test_client_gets_control_back_when_a_tool_requires_confirmation(
    gateway: GatewayProcess, streaming: str
) -> None:
    [reported] = await talk(gateway, "127.0.0.1", streaming, "delete rows")
    assert len(reported.find_confirmations()) == 1


@pytest.mark.parametrize("streaming", ["none", "sse"])
async def test_tool_runs_once_its_user_confirms(
    agent: str, gateway: GatewayProcess, streaming: str
) -> None:
    before = await count_runs(agent)
    asked, reported = await talk(gateway, "127.0.0.1", streaming, "delete rows", "yes")
    assert len(asked.find_confirmations()) == 1
    assert "42 rows of table-0 are gone" in reported.texts[-1]
    assert reported.find_confirmations() == set()
    assert await count_runs(agent) == before + 1


@pytest.mark.parametrize("streaming", ["none", "sse"])
async def test_tool_does_not_run_when_its_user_rejects(
    agent: str, gateway: GatewayProcess, streaming: str
) -> None:
    before = await count_runs(agent)
    asked, reported = await talk(gateway, "127.0.0.1", streaming, "delete rows", "no")
    assert len(asked.find_confirmations()) == 1
    assert "rejected" in reported.texts[-1]
    assert reported.find_confirmations() == set()
    assert await count_runs(agent) == before
