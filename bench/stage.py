"""What is measured over A2A: a sample agent, a gateway in front of it, and a load, each a process of its own.

The agent's tracing is off, since it would make the agent dearer and every ratio better. All of it listens on
loopback, writes below one temporary directory, and ends with the block that opened it.
"""

from __future__ import annotations

import asyncio
import hashlib
import re
import sys
import tempfile
from collections.abc import AsyncGenerator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Final

import httpx
import orjson

from bench.load import Order, Outcome
from bench.rows import BenchBroken
from bench.usage import Meter, find_children
from passerelle.demo.processes import Child, GatewayProcess, start
from passerelle.store.connection import Endpoint, read_url

ROOT: Final = Path(__file__).resolve().parent.parent
ANSWER_S: Final = 120.0
_NO_TRACING: Final = {"OTEL_INSTRUMENTATION_A2A_SDK_ENABLED": "false"}
_KEY: Final = "psr_bench"
_CLIENT: Final = {"Authorization": f"Bearer {_KEY}"}
_LIMITS: Final = "{concurrency: 10000, rate: 1000000/s}"
"""Never reached: what is measured is what it costs to count."""
_APPENDS: Final = re.compile(r"^passerelle_appends_total\{[^}]*\} (\S+)$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Round:
    """What one order did: CPU microseconds per answer of agent, gateway and engine, and appends per answer."""

    outcome: Outcome
    agent_us: float
    gateway_us: float
    engine_us: float
    appends: float

    @property
    def rate(self) -> float:
        """Answers, or frames, in a second."""
        return self.outcome.count / self.outcome.seconds


class Load:
    """The load process, one order at a time."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process

    async def carry_out(self, order: Order) -> Outcome:
        """Gives an order and waits for its end.

        Raises:
            BenchBroken: an answer was not what was expected, or none came.
        """
        wire = self._process
        if wire.stdin is None or wire.stdout is None:
            raise BenchBroken("the load has no pipes")
        wire.stdin.write(orjson.dumps(asdict(order)) + b"\n")
        await wire.stdin.drain()
        async with asyncio.timeout(ANSWER_S):
            line = await wire.stdout.readline()
        if not line:
            raise BenchBroken("the load has ended")
        outcome = Outcome(**orjson.loads(line))
        if outcome.error is not None:
            raise BenchBroken(f"{order.url}: {outcome.error}")
        return outcome


@dataclass(frozen=True, slots=True)
class Stage:
    """One agent and its gateway, both warm or not; an order says which of the two it wants."""

    load: Load
    agent: Child
    gateway: GatewayProcess
    direct_url: str
    through_url: str
    engine_pid: int

    async def run(self, order: Order, *, through: bool) -> Round:
        """One round of load, directly or through the gateway, with what it cost each process.

        Raises:
            BenchBroken: the round did not go as it should.
        """
        order = (
            replace(order, url=self.through_url, headers=_CLIENT)
            if through
            else replace(order, url=self.direct_url)
        )
        meter = Meter((self.agent.process.pid, self.gateway_pid, self.engine_pid))
        appends, before = await self.count_appends(), meter.read()
        outcome = await self.load.carry_out(order)
        after = meter.read()
        if outcome.count == 0:
            raise BenchBroken(f"{order.url}: nothing was answered")
        agent, gateway, engine = (
            1e6 * (late - early) / outcome.count for early, late in zip(before, after, strict=True)
        )
        appended = (await self.count_appends() - appends) / outcome.count
        return Round(outcome, agent, gateway, engine, appended)

    @property
    def gateway_pid(self) -> int:
        """The process of the gateway."""
        child = self.gateway.child
        if child is None:
            raise BenchBroken("the gateway has not been started")
        return child.process.pid

    async def count_appends(self) -> float:
        """Appends of any result that the gateway has made."""
        async with httpx.AsyncClient() as http:
            page = await http.get(f"{self.gateway.url}/metrics", headers=self.gateway.authorization)
        return sum(map(float, _APPENDS.findall(page.raise_for_status().text)))

    def find_endpoint(self) -> Endpoint:
        """Where the gateway's engine is."""
        socket = (self.gateway.data_dir / "socket").read_text(encoding="utf-8")
        return read_url(f"unix://{socket}")


def _write_config(agent: str, url: str, others: Mapping[str, str]) -> str:
    """One client with a key, and limits on both sides of the gateway."""
    more = "".join(f"  - {{name: {name}, url: {at}}}\n" for name, at in others.items())
    key_hash = hashlib.sha256(_KEY.encode()).hexdigest()
    return (
        f"agents:\n  - {{name: {agent}, url: {url}, limits: {_LIMITS}}}\n{more}"
        f"clients:\n  - {{name: bench, key_hash: {key_hash}, may_call: [{agent}], limits: {_LIMITS}}}\n"
    )


@asynccontextmanager
async def open_stage(
    agent_name: str, others: Mapping[str, str] = MappingProxyType({})
) -> AsyncGenerator[Stage]:
    """Starts the sample agent ``agent_name`` and all that goes with it.

    ``others`` are agents that run already, by name and URL; only the owner may call them.

    Raises:
        StoryBroken, BenchBroken: a process did not come up.
    """
    async with AsyncExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="psr-bench-")))
        module = f"passerelle.demo.peers.{agent_name}"
        agent = start(agent_name, (module, "--port", "0"), folder, _NO_TRACING)
        stack.push_async_callback(agent.stop)
        url: str = orjson.loads(await agent.read_line("{"))["url"]
        config = folder / "bench.yaml"
        config.write_text(_write_config(agent_name, url, others), encoding="utf-8")
        gateway = GatewayProcess(folder, config)
        stack.push_async_callback(gateway.stop)
        await gateway.start()
        yield Stage(
            load=await stack.enter_async_context(open_load()),
            agent=agent,
            gateway=gateway,
            direct_url=f"{url}/",
            through_url=f"{gateway.url}/agents/{agent_name}",
            engine_pid=_find_engine(gateway),
        )


@asynccontextmanager
async def open_load() -> AsyncGenerator[Load]:
    """The load process, gone with the block."""
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "bench.load",
        cwd=ROOT,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )
    try:
        yield Load(process)
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


def _find_engine(gateway: GatewayProcess) -> int:
    child = gateway.child
    children = find_children(child.process.pid) if child is not None else []
    if len(children) != 1:
        raise BenchBroken(f"the gateway has {len(children)} children, and one is its engine")
    return children[0]
