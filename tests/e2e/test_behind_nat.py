"""The guide's agent behind NAT, with the commands of the guide: it has no port, but is called."""

from __future__ import annotations

import re
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any, Final, cast

import pytest
import yaml

from passerelle.client.agent import ReverseAgent
from passerelle.demo.processes import Child, GatewayProcess, start
from passerelle.gateway.auth.keys import hash_key
from passerelle.runtime.common.secret import Secret
from passerelle.store.engine_binary import find_engine
from tests.integration.callers.rig import KEY as SECRET_KEY
from tests.integration.callers.rig import describe
from tests.integration.reverse.rig import CLIENTS, NAME, Agent, CountingExecutor
from tests.support.client_package import write_client
from tests.support.engine import run_server
from tests.support.fork_server import find_starter
from tests.support.ports import find_free_port
from tests.support.processes import Caller, open_caller, start_together
from tests.support.tcp_proxy import fault_proxy
from tests.support.waiting import wait_until

PAGE: Final = Path(__file__).parents[2] / "docs" / "how-to" / "serve-an-agent-behind-nat.md"
BLOCKS: Final = dict(
    re.findall(
        r"^```(yaml|python)[^\n]*\n(.*?)^```$", PAGE.read_text("utf-8"), re.MULTILINE | re.DOTALL
    )
)
KEY: Final = "psr_the_key_of_builder"
COMPLETED: Final = "TASK_STATE_COMPLETED"
SETTINGS: Final = {
    "agents": [{"name": NAME, "transport": "channel"}],
    "secret_key": SECRET_KEY,
}
Answer = dict[str, Any]

pytestmark = pytest.mark.anyio


@pytest.fixture
async def gateway(tmp_path: Path, anyio_backend: str) -> AsyncGenerator[GatewayProcess]:
    config = tmp_path / "passerelle.yaml"
    shown = re.sub(r"sha256:[0-9a-f]{64}", hash_key(Secret(KEY)), BLOCKS["yaml"])
    config.write_text(shown, encoding="utf-8")
    (tmp_path / "agent.py").write_text(BLOCKS["python"], encoding="utf-8")
    write_client(tmp_path)
    process = GatewayProcess(tmp_path, config, port=find_free_port(), begin=find_starter(None))
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


async def test_agent_of_the_guide_is_served_and_reconnects_after_a_kill(
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


@asynccontextmanager
async def run_one(folder: Path, redis_url: str) -> AsyncGenerator[GatewayProcess]:
    """One of several gateways over one server, which the agent may dial into."""
    folder.mkdir()
    clients = [describe(dict(one)) for one in CLIENTS]
    config = folder / "passerelle.yaml"
    config.write_text(yaml.safe_dump({**SETTINGS, "clients": clients, "redis_url": redis_url}))
    process = GatewayProcess(folder, config, port=find_free_port(), begin=find_starter(None))
    try:
        await process.start()
        yield process
    finally:
        await process.stop()


async def begin(caller: Caller, executor: CountingExecutor, count: int) -> Answer:
    """A task that the agent works on."""
    task = await caller.begin("silent")
    await wait_until(lambda: executor.executed.total() == count, 10, "the agent is at work")
    return task


@pytest.mark.requirement("CHN-13", "I6")
async def test_an_agent_outlives_the_gateways_that_it_dialled_into(
    tmp_path: Path, anyio_backend: str
) -> None:
    """One gateway drains, another is killed: the agent's runs move with it, and are executed once."""
    agent = Agent()
    async with AsyncExitStack() as stack:
        server = stack.enter_context(run_server(find_engine(None)))
        names = ("first", "second")
        running = [run_one(tmp_path / name, server.url) for name in names]
        first, second = await start_together(stack, running)
        way = await stack.enter_async_context(fault_proxy(f"127.0.0.1:{first.port}"))
        url = f"ws://127.0.0.1:{way.port}/v1/channel"
        dialling = ReverseAgent(
            url, token=f"{NAME}-key", name=NAME, handler=agent.app, jitter=lambda: 0.1
        )
        await stack.enter_async_context(dialling)
        await dialling.wait_served()
        async with open_caller(second, NAME) as caller:
            task = await begin(caller, agent.executor, 1)
            way.upstream = f"127.0.0.1:{second.port}"
            assert await first.stop() == 0
            await wait_until(lambda: way.accepted > 1, 10, "the agent has moved")
            agent.executor.silence.set()
            assert (await caller.await_end(task["id"]))["status"]["state"] == COMPLETED
        agent.executor.silence.clear()
        await first.start()
        async with open_caller(first, NAME) as caller:
            task = await begin(caller, agent.executor, 2)
            way.upstream = f"127.0.0.1:{first.port}"
            second.kill()
            agent.executor.silence.set()
            assert (await caller.await_end(task["id"], 30))["status"]["state"] == COMPLETED
    assert set(agent.executor.executed.values()) == {1}
