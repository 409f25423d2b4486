"""The A2A testbed: a sample agent, a gateway in front of it, and a load generator, each a separate process.

The agent's tracing is off: it would make the agent more expensive and every ratio better. Everything listens on
loopback, writes below one temporary directory, and ends with the block that opened it.
"""

from __future__ import annotations

import asyncio
import hashlib
import re
import sys
import tempfile
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Final

import httpx
import orjson
import yaml

from bench.load import LoadOrder, LoadRun
from bench.rows import MeasurementError
from bench.steps import RequestStep
from bench.trees import ROOT, Checkout
from bench.usage import CpuMeter, find_children, read_used_bytes
from passerelle.core.wire.json import JsonObject
from passerelle.demo.processes import Child, GatewayProcess, Starter, start
from passerelle.store.connection import Endpoint, read_url

ANSWER_S: Final = 120.0
KEY: Final = "psr_bench_0"
"""Key of the first client."""
LIMITS: Final[JsonObject] = {"concurrency": 10_000, "rate": "1000000/s"}
"""A limit that is never reached: the cost of counting is measured."""
RECEIVER: Final = "http://receiver"
"""Placeholder in a step for the receiver's URL, which is known when the testbed runs."""
_NO_TRACING: Final = {"OTEL_INSTRUMENTATION_A2A_SDK_ENABLED": "false"}
_REST_S: Final = 0.25
_APPENDS: Final = re.compile(r"^passerelle_appends_total\{[^}]*\} (\S+)$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class RoundResult:
    """The result of one order, per answer: CPU µs of agent, gateway and engine, appends and stored bytes."""

    outcome: LoadRun
    agent_us: float
    gateway_us: float = 0.0
    engine_us: float = 0.0
    appends: float = 0.0
    kept_bytes: float = 0.0

    @property
    def rate(self) -> float:
        """Answers per second."""
        return self.outcome.count / self.outcome.seconds


class LoadProcess:
    """The load generator process, one order at a time."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process

    async def execute(self, order: LoadOrder) -> LoadRun:
        """Sends an order and waits for its end.

        Raises:
            MeasurementError: an answer was missing or not as expected.
        """
        wire = self._process
        if wire.stdin is None or wire.stdout is None:
            raise MeasurementError("the load has no pipes")
        wire.stdin.write(orjson.dumps(asdict(order)) + b"\n")
        await wire.stdin.drain()
        async with asyncio.timeout(ANSWER_S):
            line = await wire.stdout.readline()
        if not line:
            raise MeasurementError("the load has ended")
        outcome = LoadRun(**orjson.loads(line))
        if outcome.error is not None:
            raise MeasurementError(f"{order.url}: {outcome.error}")
        return outcome


@dataclass(frozen=True, slots=True)
class BenchGateway:
    """A running gateway with its engine."""

    process: GatewayProcess
    pid: int
    engine_pid: int

    def find_url(self, agent: str) -> str:
        """The URL of an agent."""
        return f"{self.process.url}/agents/{agent}"

    async def count_appends(self) -> float:
        """Number of appends of any result."""
        # With `auth: open` there is no owner token, and none is needed.
        has_token = (self.process.data_dir / "owner-token").exists()
        headers = self.process.authorization if has_token else {}
        async with httpx.AsyncClient(headers=headers, trust_env=False) as http:
            page = await http.get(f"{self.process.url}/metrics")
        return sum(map(float, _APPENDS.findall(page.raise_for_status().text)))

    def find_endpoint(self) -> Endpoint:
        """The endpoint of its engine."""
        socket = (self.process.data_dir / "socket").read_text(encoding="utf-8")
        return read_url(f"unix://{socket}")


@dataclass(frozen=True, slots=True)
class Testbed:
    """One agent and the gateways in front of it: that of this checkout, and that of another, if any."""

    load: LoadProcess
    agent: Child
    agent_name: str
    direct_url: str
    receiver: str
    ours: BenchGateway
    base: BenchGateway | None

    async def run(
        self,
        order: LoadOrder,
        gateway: BenchGateway | None = None,
        *,
        as_agent: str = "",
        lead: Sequence[RequestStep] = (),
    ) -> RoundResult:
        """One round of load, directly or through a gateway, with its cost per process.

        ``as_agent`` is another name under which the gateway serves the agent. Each caller executes ``lead`` before
        the measurement. A round through a gateway is over when the gateway has finished all work on it.

        Raises:
            MeasurementError: the round failed.
        """
        order = (
            replace(order, url=self.direct_url, keys=())
            if gateway is None
            else replace(order, url=gateway.find_url(as_agent or self.agent_name))
        )
        steps = [
            replace(one, body=one.body.replace(RECEIVER, self.receiver)) for one in order.steps
        ]
        order = replace(order, steps=steps)
        if lead:
            found = (await self.load.execute(replace(order, steps=lead, seconds=0))).found
            order = replace(order, known=found)
        if gateway is None:
            meter = CpuMeter((self.agent.process.pid,))
            [before] = meter.read()
            outcome = await self._execute(order)
            [after] = meter.read()
            return RoundResult(outcome, 1e6 * (after - before) / outcome.count)
        endpoint = gateway.find_endpoint()
        meter = CpuMeter((self.agent.process.pid, gateway.pid, gateway.engine_pid))
        counts = await gateway.count_appends(), await read_used_bytes(endpoint)
        started = meter.read()
        outcome = await self._execute(order)
        await CpuMeter((gateway.pid, gateway.engine_pid)).await_rest(_REST_S)
        ended = meter.read()
        agent, own, engine = (
            1e6 * (late - early) / outcome.count for early, late in zip(started, ended, strict=True)
        )
        appends = (await gateway.count_appends() - counts[0]) / outcome.count
        kept = (await read_used_bytes(endpoint) - counts[1]) / outcome.count
        return RoundResult(outcome, agent, own, engine, appends, kept)

    async def _execute(self, order: LoadOrder) -> LoadRun:
        outcome = await self.load.execute(order)
        if outcome.count == 0:
            raise MeasurementError(f"{order.url}: nothing was answered")
        return outcome


@dataclass(frozen=True, slots=True)
class GatewaySetup:
    """The setup of gateways in front of the sample agent ``agent``.

    Each of ``clients`` clients has a key. ``more`` gets the URL of a receiver and returns further configuration.
    ``others`` are further names, each for the sample agent or, with a ``url``, for another one.
    """

    agent: str
    clients: int = 1
    others: Sequence[JsonObject] = ()
    more: Callable[[str], JsonObject] = lambda _: {}

    def compose(self, agent_url: str, receiver: str) -> JsonObject:
        """The configuration."""
        names: list[JsonObject] = [{"name": self.agent}, *self.others]
        return {
            "agents": [{"url": agent_url, "limits": LIMITS, **one} for one in names],
            "clients": [
                {
                    "name": f"bench-{number}",
                    "key_hash": hashlib.sha256(key.encode()).hexdigest(),
                    "may_call": ["*"],
                    "limits": LIMITS,
                }
                for number, key in enumerate(make_keys(self.clients))
            ],
            **self.more(receiver),
        }


def make_keys(count: int) -> list[str]:
    """The keys of ``count`` clients."""
    return [f"{KEY[:-1]}{number}" for number in range(count)]


@asynccontextmanager
async def open_testbed(
    setting: GatewaySetup, base: Checkout | None = None
) -> AsyncGenerator[Testbed]:
    """Starts the sample agent, its gateway, that of another checkout, and the other processes.

    Raises:
        CheckFailed, MeasurementError: a process did not start.
    """
    async with AsyncExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="psr-bench-")))

        async def begin(name: str, environ: Mapping[str, str], *words: str) -> tuple[Child, str]:
            child = start(name, words, folder, environ)
            stack.push_async_callback(child.stop)
            return child, str(orjson.loads(await child.read_line("{"))["url"])

        peer = f"passerelle.demo.peers.{setting.agent}"
        agent, url = await begin(setting.agent, _NO_TRACING, peer, "--port", "0")
        _, receiver = await begin("receiver", {"PYTHONPATH": str(ROOT)}, "bench.receiver")
        config = folder / "bench.yaml"
        config.write_text(yaml.safe_dump(setting.compose(url, receiver)), encoding="utf-8")
        ours = await stack.enter_async_context(open_gateway(start, folder / "ours", config))
        yield Testbed(
            load=await stack.enter_async_context(open_load()),
            agent=agent,
            agent_name=setting.agent,
            direct_url=f"{url}/",
            receiver=receiver,
            ours=ours,
            base=await stack.enter_async_context(open_gateway(base.begin, folder / "base", config))
            if base
            else None,
        )


@asynccontextmanager
async def open_gateway(begin: Starter, folder: Path, config: Path) -> AsyncGenerator[BenchGateway]:
    """A gateway with a new engine in a new folder; it ends with the block.

    Raises:
        CheckFailed, MeasurementError: a process did not start.
    """
    folder.mkdir()  # noqa: ASYNC240  nothing else runs yet
    process = GatewayProcess(folder, config, begin=begin)
    try:
        await process.start()
        if process.child is None:
            raise MeasurementError("the gateway has not been started")
        pid = process.child.process.pid
        children = find_children(pid)
        if len(children) != 1:
            raise MeasurementError(
                f"the gateway has {len(children)} children, and one is its engine"
            )
        yield BenchGateway(process, pid, children[0])
    finally:
        await process.stop()


@asynccontextmanager
async def open_load() -> AsyncGenerator[LoadProcess]:
    """The load generator process; it ends with the block."""
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "bench.load",
        cwd=ROOT,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        limit=1 << 20,
    )
    try:
        yield LoadProcess(process)
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()
