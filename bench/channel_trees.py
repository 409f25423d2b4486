"""Channels of this tree and of another: the same events of an agent to the same number of clients, in turns.

Nothing is stored by our own hands: an agent says the events, and a gateway of either tree makes of them what it makes.
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

from bench.channel_clients import Kind
from bench.channel_servers import EVENT_BYTES, find_free_port, mark
from bench.channels import CLIENTS, MISSED, REST_S, WARM_EVENTS, Plan, Scene, open_clients
from bench.kinds import make_call, make_message
from bench.load import Order
from bench.rows import Row
from bench.speaker import NAME
from bench.stage import Gateway, open_gateway, open_load
from bench.steps import Step
from bench.trees import ROOT, Tree, compare, take_turns
from bench.usage import Meter
from passerelle.demo.processes import Starter, start

_RATES: Final = (50, 200)
_STORMS: Final = 2
"""For each round of turns: one storm differs from the next by a third."""
_BEGIN: Final = Step(
    make_call(
        "SendMessage",
        {"message": make_message("speak"), "configuration": {"returnImmediately": True}},
    ),
    '"task"',
    teaches=True,
)


@dataclass(frozen=True, slots=True)
class Spoken:
    """A gateway whose events an agent says; ``say_url`` is where the agent is told what."""

    name: str
    url: str
    token: str
    stream: str
    pids: Sequence[int]
    say_url: str
    http: httpx.AsyncClient
    wire: Kind = "passerelle"

    async def publish(self, stream: str, place: int, number: int) -> None:  # noqa: ARG002  it has one
        text = mark(place, number)
        said = await self.http.post(self.say_url, content=text + b"e" * (EVENT_BYTES - len(text)))
        said.raise_for_status()


async def compare_channels(plan: Plan, base: Tree) -> AsyncGenerator[Row]:
    """Rows of the section: what gateways of the two trees take, in CPU, behind either back-end."""
    for name in ("fast", "ASGI"):
        async with AsyncExitStack() as stack:
            clients = await stack.enter_async_context(open_clients())
            scenes: list[Scene] = []
            for side, begin in (("ours", start), ("base", base.begin)):
                server = await stack.enter_async_context(_open(side, name, begin))
                scene = Scene(server, clients, side, [server.stream])
                await scene.open(CLIENTS)
                await scene.publish(100, WARM_EVENTS)
                await scene.await_all()
                scenes.append(scene)
            async for row in _compare(scenes, name, plan):
                yield row


async def _compare(scenes: Sequence[Scene], name: str, plan: Plan) -> AsyncGenerator[Row]:
    ours, base = scenes
    for rate in _RATES:
        turns = await take_turns(plan.rounds, partial(_deliver, rate, plan.seconds), ours, base)
        yield compare(f"{CLIENTS} clients, {rate} events/s: CPU per delivery, {name}", turns)
    storms = await take_turns(_STORMS * plan.rounds, _storm, ours, base)
    yield compare(f"{CLIENTS} clients back to {MISSED} missed events: CPU, {name}", storms)


async def _deliver(rate: int, seconds: float, scene: Scene) -> float:
    return (await scene.take_turn(rate, seconds)).us


async def _storm(scene: Scene) -> float:
    meter = Meter(scene.server.pids)
    await meter.await_rest(REST_S)
    before = sum(meter.read())
    await scene.storm(MISSED)
    return sum(meter.read()) - before


@asynccontextmanager
async def _open(side: str, name: str, begin: Starter) -> AsyncGenerator[Spoken]:
    """An agent, a gateway in front of it, and a task whose stream is open."""
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
        yield Spoken(
            side,
            f"ws://127.0.0.1:{port if name == 'fast' else gateway.process.port}/v1/channel",
            gateway.process.token,
            f"task:{await _begin_task(gateway)}",
            (gateway.pid,),
            f"{url}/say",
            await stack.enter_async_context(httpx.AsyncClient(timeout=20, trust_env=False)),
        )


async def _begin_task(gateway: Gateway) -> str:
    async with open_load() as load:
        keys = [gateway.process.token]
        begun = await load.carry_out(Order("send", gateway.find_url(NAME), [_BEGIN], keys=keys))
    [(_, task)] = begun.found
    return task
