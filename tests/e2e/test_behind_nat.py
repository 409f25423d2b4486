"""The agent behind NAT that the guide shows, by the words of the guide: it has no port, and is served all the same."""

from __future__ import annotations

import re
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any, Final, cast

import pytest

from passerelle.gateway.auth.keys import hash_key
from passerelle.gateway.demo.processes import Child, GatewayProcess, start
from passerelle.gateway.secret import Secret
from tests.support.processes import Caller, open_caller
from tests.support.waiting import wait_until

PAGE: Final = Path(__file__).parents[2] / "docs" / "guide" / "serve-an-agent-behind-nat.md"
BLOCKS: Final = dict(
    re.findall(r"^```(yaml|python)\n(.*?)^```$", PAGE.read_text("utf-8"), re.MULTILINE | re.DOTALL)
)
KEY: Final = "psr_the_key_of_builder"
Answer = dict[str, Any]

pytestmark = pytest.mark.anyio


@pytest.fixture
async def gateway(tmp_path: Path, anyio_backend: str) -> AsyncGenerator[GatewayProcess]:
    config = tmp_path / "passerelle.yaml"
    shown = re.sub(r"sha256:[0-9a-f]{64}", hash_key(Secret(KEY)), BLOCKS["yaml"])
    config.write_text(shown, encoding="utf-8")
    (tmp_path / "agent.py").write_text(BLOCKS["python"], encoding="utf-8")
    process = GatewayProcess(tmp_path, config)
    try:
        await process.start()
        yield process
    finally:
        await process.stop()


async def run_agent(gateway: GatewayProcess) -> Child:
    url = f"{gateway.url.replace('http', 'ws', 1)}/v1/channel"
    child = start("agent", ("agent", url, KEY), gateway.folder)
    await child.read_line("served")
    return child


async def build(caller: Caller, what: str) -> list[str]:
    task = await caller.send(what)
    assert task["status"]["state"] == "TASK_STATE_COMPLETED"
    return [part["text"] for one in task["artifacts"] for part in one["parts"]]


async def test_the_agent_of_the_guide_is_served_and_comes_back_after_a_kill(
    gateway: GatewayProcess,
) -> None:
    async with open_caller(gateway, "builder") as caller:
        first = await run_agent(gateway)
        card = await caller.http.get("/agents/builder/.well-known/agent-card.json")
        assert card.json()["name"] == "Builder"
        assert await build(caller, "a house") == ["built a house"]
        first.kill()

        async def is_away() -> bool:
            listed = cast("Answer", (await caller.http.get("/v1/agents")).json())
            return bool(listed["agents"][0]["status"] == "stale")

        await wait_until(is_away, 10, "the gateway knows that the agent is away")
        second = await run_agent(gateway)
        try:
            assert await build(caller, "a barn") == ["built a barn"]
        finally:
            await second.stop()
