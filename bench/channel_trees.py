"""Channels of this checkout and of another: the same agent events to the same number of clients, in turns.

Nothing is appended directly: an agent sends the events, and a gateway of either checkout processes them.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

import httpx
import orjson
import yaml

from bench.channel_clients import ServerKind
from bench.channel_servers import EVENT_BYTES, find_free_port, mark
from bench.channels import (
    CLIENTS,
    MISSED,
    REST_S,
    WARM_EVENTS,
    ChannelPlan,
    ChannelScene,
    open_clients,
)
from bench.kinds import make_call, make_message
from bench.load import LoadOrder
from bench.rows import Row
from bench.speaker import NAME
from bench.steps import RequestStep
from bench.testbed import BenchGateway, open_gateway, open_load
from bench.trees import ROOT, Checkout, compare, take_turns
from bench.usage import CpuMeter
from passerelle.demo.processes import Starter, start

_RATES: Final = (50, 200)
_STORMS: Final = 2
"""Storms per round of turns: one differs from the next by a third."""
_BEGIN: Final = RequestStep(
    make_call(
        "SendMessage",
        {"message": make_message("speak"), "configuration": {"returnImmediately": True}},
    ),
    '"task"',
    teaches=True,
)


@dataclass(frozen=True, slots=True)
class AgentFedGateway:
    """A gateway whose events come from an agent; ``say_url`` is where the agent gets its texts."""

    name: str
    url: str
    token: str
    stream: str
    pids: Sequence[int]
    say_url: str
    http: httpx.AsyncClient
    wire: ServerKind = "passerelle"

    async def publish(self, stream: str, place: int, number: int) -> None:  # noqa: ARG002  it has one
        text = mark(place, number)
        said = await self.http.post(self.say_url, content=text + b"e" * (EVENT_BYTES - len(text)))
        said.raise_for_status()


async def compare_channels(plan: ChannelPlan, base: Checkout) -> AsyncGenerator[Row]:
    """Rows of the section: CPU of the gateways of the two checkouts, behind either back end."""
    for name in ("fast", "ASGI"):
        async with AsyncExitStack() as stack:
            clients = await stack.enter_async_context(open_clients())
            scenes: list[ChannelScene] = []
            for side, begin in (("ours", start), ("base", base.begin)):
                server = await stack.enter_async_context(_open(side, name, begin))
                scene = ChannelScene(server, clients, side, [server.stream])
                await scene.open(CLIENTS)
                await scene.publish(100, WARM_EVENTS)
                await scene.await_all()
                scenes.append(scene)
            async for row in _compare(scenes, name, plan):
                yield row


async def _compare(
    scenes: Sequence[ChannelScene], name: str, plan: ChannelPlan
) -> AsyncGenerator[Row]:
    ours, base = scenes
    for rate in _RATES:
        turns = await take_turns(plan.rounds, partial(_deliver, rate, plan.seconds), ours, base)
        yield compare(f"{CLIENTS} clients, {rate} events/s: CPU per delivery, {name}", turns)
    storms = await take_turns(_STORMS * plan.rounds, _storm, ours, base)
    yield compare(f"{CLIENTS} clients back to {MISSED} missed events: CPU, {name}", storms)


async def _deliver(rate: int, seconds: float, scene: ChannelScene) -> float:
    return (await scene.take_turn(rate, seconds)).us


async def _storm(scene: ChannelScene) -> float:
    meter = CpuMeter(scene.server.pids)
    await meter.await_rest(REST_S)
    before = sum(meter.read())
    await scene.storm(MISSED)
    return sum(meter.read()) - before


@asynccontextmanager
async def _open(side: str, name: str, begin: Starter) -> AsyncGenerator[AgentFedGateway]:
    """Starts an agent, a gateway in front of it, and a task with an open stream."""
    async with AsyncExitStack() as stack:
        folder = Path(stack.enter_context(TemporaryDirectory(prefix="psr-bench-")))
        agent = start(NAME, ("bench.speaker",), folder, {"PYTHONPATH": str(ROOT)})
        stack.push_async_callback(agent.stop)
        url: str = orjson.loads(await agent.read_line("{"))["url"]
        port = find_free_port()
        settings = {
            "agents": [{"name": NAME, "url": url}],
            "channels": {"port": port, "principal_connections": 100_000},
        }
        config = folder / "bench.yaml"
        config.write_text(yaml.safe_dump(settings), encoding="utf-8")
        gateway = await stack.enter_async_context(open_gateway(begin, folder / side, config))
        yield AgentFedGateway(
            side,
            f"ws://127.0.0.1:{port if name == 'fast' else gateway.process.port}/v1/channel",
            gateway.process.token,
            f"task:{await _begin_task(gateway)}",
            (gateway.pid,),
            f"{url}/say",
            await stack.enter_async_context(httpx.AsyncClient(timeout=20, trust_env=False)),
        )


async def _begin_task(gateway: BenchGateway) -> str:
    async with open_load() as load:
        keys = [gateway.process.token]
        begun = await load.execute(LoadOrder("send", gateway.find_url(NAME), [_BEGIN], keys=keys))
    [(_, task)] = begun.found
    return task
