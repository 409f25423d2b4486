"""google-adk's own remote agent, unmodified, as a caller of agents behind the gateway."""

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
class Told:
    """What the user of the client was told by one message."""

    texts: list[str]
    calls: list[dict[str, Any]]

    def find_confirmations(self) -> set[str]:
        """The ids of the calls that want to be confirmed."""
        return {str(call["id"]) for call in self.calls if call["name"] == CONFIRMATION}


@pytest.fixture(scope="module")
def anyio_backend() -> Backend:
    return SHARED


@pytest.fixture(scope="module")
async def agent(anyio_backend: Backend) -> AsyncGenerator[str]:
    """The address of an agent of google-adk, started once."""
    require(ADK)
    async with run_agent("adk", "JSONRPC") as url:
        yield url


@pytest.fixture(scope="module")
async def gateway(
    agent: str, tmp_path_factory: pytest.TempPathFactory
) -> AsyncGenerator[GatewayProcess]:
    """A gateway in front of the agent, started once; it serves gRPC beside HTTP."""
    folder = tmp_path_factory.mktemp("gateway")
    grpc = {"port": 0, "address": "127.0.0.1:1"}
    async with run_gateway(folder, {"adk": agent}, grpc=grpc) as process:
        yield process


async def count_runs(agent: str) -> int:
    """How often the agent's tool ran."""
    async with aiohttp.ClientSession() as http, http.get(f"{agent}/ran") as response:
        return len(await response.json())


async def talk(gateway: GatewayProcess, host: str, *said: str) -> list[Told]:
    """What the client was told, message by message."""
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
    return [Told(**cast("dict[str, Any]", one)) for one in json.loads(out)]


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
@pytest.mark.parametrize("streaming", ["none", "sse"])
async def test_client_accepts_the_card_and_hears_text(
    gateway: GatewayProcess, host: str, streaming: str
) -> None:
    [told] = await talk(gateway, host, streaming, "hello")
    assert told.texts[-1] == "hello to you"
    assert told.calls == []


@pytest.mark.parametrize("streaming", ["none", "sse"])
async def test_client_gets_its_loop_back_when_a_tool_wants_to_be_confirmed(
    gateway: GatewayProcess, streaming: str
) -> None:
    [told] = await talk(gateway, "127.0.0.1", streaming, "delete rows")
    assert len(told.find_confirmations()) == 1


@pytest.mark.parametrize("streaming", ["none", "sse"])
async def test_tool_runs_once_its_user_says_yes(
    agent: str, gateway: GatewayProcess, streaming: str
) -> None:
    before = await count_runs(agent)
    asked, told = await talk(gateway, "127.0.0.1", streaming, "delete rows", "yes")
    assert len(asked.find_confirmations()) == 1
    assert "42 rows of table-0 are gone" in told.texts[-1]
    assert told.find_confirmations() == set()
    assert await count_runs(agent) == before + 1


@pytest.mark.parametrize("streaming", ["none", "sse"])
async def test_tool_does_not_run_when_its_user_says_no(
    agent: str, gateway: GatewayProcess, streaming: str
) -> None:
    before = await count_runs(agent)
    asked, told = await talk(gateway, "127.0.0.1", streaming, "delete rows", "no")
    assert len(asked.find_confirmations()) == 1
    assert "rejected" in told.texts[-1]
    assert told.find_confirmations() == set()
    assert await count_runs(agent) == before
