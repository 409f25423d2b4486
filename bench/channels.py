"""Channels next to Nchan (C, in nginx) and Socket.IO, in one run: the same events to the same number of clients.

The measure is CPU time of all serving processes, including their store, per delivered event. The servers take turns,
so drift of the machine affects all of them. Clients check order, gaps and duplicates.
"""

from __future__ import annotations

import asyncio
import resource
import statistics
import sys
from collections.abc import AsyncGenerator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import asdict, dataclass
from typing import Final

import orjson

from bench.channel_clients import ChannelOrder, ChannelResult
from bench.channel_servers import (
    ChannelServer,
    PasserelleServer,
    find_nchan,
    find_socketio,
    open_nchan,
    open_passerelle,
    open_socketio,
    pace,
)
from bench.rows import Bound, MeasurementError, Row, Spread
from bench.trees import ROOT
from bench.usage import CpuMeter, read_resident_bytes

CLIENTS: Final = 500
MISSED: Final = 100
_STORMS: Final = 5
"""Storms per round of turns: a storm takes a third of a second, and one differs from the next by a third."""
_WRITES_S: Final = 4.0
"""The gateway begins to write its records of a storm three seconds later, and some a minute later."""
_ABSENT_RATE: Final = 500
"""Events per second while all are disconnected: all servers keep this pace and have the same time to notice."""
IDLE: Final = 10_000
IDLE_STREAMS: Final = 2
MANY, FEW, RATE = 5_000, 10, 300
_STREAMS_EACH: Final = 100
WARM_EVENTS: Final = 50
_FILES_SPARE: Final = 500
_ANSWER_S: Final = 240.0
REST_S: Final = 1.0
_CPU: Final = {"fast": Bound("at most", 1.0), "ASGI": Bound("at most", 2.0)}
_STORM: Final = {"fast": Bound("at most", 1.0)}
_MEMORY: Final = {"fast": Bound("at most", 40.0), "ASGI": Bound("at most", 72.0)}


@dataclass(frozen=True, slots=True)
class ChannelPlan:
    """Duration: rounds, seconds at each rate."""

    rounds: int
    seconds: float


@dataclass(frozen=True, slots=True)
class ChannelTurn:
    """One turn of one server at one rate."""

    us: float
    p50_ms: float
    p99_ms: float


class ClientProcess:
    """The client process, one order at a time."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process

    async def execute(self, order: ChannelOrder) -> ChannelResult:
        """Sends an order and waits for its end.

        Raises:
            MeasurementError: an event was lost, duplicated or refused.
        """
        wire = self._process
        if wire.stdin is None or wire.stdout is None:
            raise MeasurementError("the clients have no pipes")
        wire.stdin.write(orjson.dumps(asdict(order)) + b"\n")
        await wire.stdin.drain()
        async with asyncio.timeout(_ANSWER_S):
            line = await wire.stdout.readline()
        if not line:
            raise MeasurementError("the clients have ended")
        outcome = ChannelResult(**orjson.loads(line))
        if outcome.error is not None:
            raise MeasurementError(f"{order.group}: {outcome.error}")
        return outcome


@asynccontextmanager
async def open_clients() -> AsyncGenerator[ClientProcess]:
    """Starts the process; it ends with the block."""
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "bench.channel_clients",
        cwd=ROOT,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        limit=1 << 20,
    )
    try:
        yield ClientProcess(process)
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


class ChannelScene:
    """One server with connected clients. Each receives all events of its streams."""

    def __init__(
        self, server: ChannelServer, clients: ClientProcess, group: str, streams: Sequence[str]
    ) -> None:
        self.server = server
        self._clients = clients
        self._group = group
        self._streams = streams
        self._sent = 0

    async def open(self, clients: int, each: int = 1) -> float:
        """Connects clients to ``each`` streams; returns the seconds that it took."""
        server = self.server
        order = ChannelOrder(
            "open",
            self._group,
            server.wire,
            server.url,
            server.token,
            list(self._streams),
            each,
            clients,
        )
        return (await self._clients.execute(order)).seconds

    async def publish(self, rate: int, count: int) -> None:
        """Publishes ``count`` events, to the streams in turn; ``count`` is a multiple of their number."""
        async for number in pace(rate, count):
            place = number % len(self._streams)
            event = self._sent + number // len(self._streams) + 1
            await self.server.publish(self._streams[place], place, event)
        self._sent += count // len(self._streams)

    async def await_all(self) -> ChannelResult:
        """Waits until all clients have received every event."""
        return await self._clients.execute(ChannelOrder("await", self._group, events=self._sent))

    async def take_turn(self, rate: int, seconds: float) -> ChannelTurn:
        """Publishes for some seconds; measures the cost per delivery and the delays."""
        meter = CpuMeter(self.server.pids)
        before = sum(meter.read())
        await self.publish(rate, round(rate * seconds))
        outcome = await self.await_all()
        used = sum(meter.read()) - before
        return ChannelTurn(1e6 * used / outcome.deliveries, outcome.p50_ms, outcome.p99_ms)

    async def storm(self, missed: int) -> float:
        """Cuts all clients, publishes events, and reconnects all at once; returns the seconds until all are complete.

        Returns only when a gateway has begun to write its records of the storm.
        """
        await self._clients.execute(ChannelOrder("drop", self._group))
        await self.publish(_ABSENT_RATE, missed)
        order = ChannelOrder("resume", self._group, events=self._sent)
        seconds = (await self._clients.execute(order)).seconds
        await asyncio.sleep(_WRITES_S if self.server.wire == "passerelle" else 0)
        return seconds

    async def close(self) -> None:
        """Cuts all connections."""
        await self._clients.execute(ChannelOrder("close", self._group))


async def measure_channels(plan: ChannelPlan) -> AsyncGenerator[Row]:
    """Rows of the section."""
    async with AsyncExitStack() as stack:
        clients = await stack.enter_async_context(open_clients())
        servers: list[ChannelServer] = []
        if (why := find_nchan()) is None:
            servers.append(await stack.enter_async_context(open_nchan()))
        else:
            yield Row(f"Nchan: {why}", None, "ratio", _CPU["fast"])
        fast, _ = await stack.enter_async_context(open_passerelle())
        _, asgi = await stack.enter_async_context(open_passerelle())
        servers += [fast, asgi]
        if (why := find_socketio()) is None:
            servers.append(await stack.enter_async_context(open_socketio()))
        else:
            yield Row(f"Socket.IO: {why}", None, "ratio")
        async for row in _compare(servers, clients, plan):
            yield row
    async with AsyncExitStack() as stack:
        # A separate gateway: a minute after the storms the other one still writes records of them.
        clients = await stack.enter_async_context(open_clients())
        fast, _ = await stack.enter_async_context(open_passerelle())
        for row in await _measure_streams(fast, clients):
            yield row
    for place, name in enumerate(("fast", "ASGI")):
        yield await _measure_idle(place, name)


async def _compare(
    servers: Sequence[ChannelServer], clients: ClientProcess, plan: ChannelPlan
) -> AsyncGenerator[Row]:
    scenes: dict[str, ChannelScene] = {}
    for server in servers:
        streams = (
            await server.make_streams(1) if isinstance(server, PasserelleServer) else ["bench"]
        )
        scene = scenes[server.name] = ChannelScene(server, clients, server.name, streams)
        await scene.open(CLIENTS)
        await scene.publish(100, WARM_EVENTS)
        await scene.await_all()
    for rate in (50, 200):
        turns: dict[str, list[ChannelTurn]] = {name: [] for name in scenes}
        for _ in range(plan.rounds):
            for name, scene in scenes.items():
                turns[name].append(await scene.take_turn(rate, plan.seconds))
        for row in _rows_of_turns(rate, turns):
            yield row
    storms: dict[str, list[float]] = {name: [] for name in scenes}
    for _ in range(_STORMS * plan.rounds):
        for name, scene in scenes.items():
            # The remaining work of one storm is not charged to the next.
            await CpuMeter([pid for server in servers for pid in server.pids]).await_rest(REST_S)
            storms[name].append(await scene.storm(MISSED))
    for row in _rows_of_storms(storms):
        yield row
    for scene in scenes.values():
        await scene.close()


def _rows_of_turns(rate: int, turns: dict[str, list[ChannelTurn]]) -> list[Row]:
    rows: list[Row] = []
    what = f"{CLIENTS} clients, {rate} events/s"
    for name, taken in turns.items():
        us = [turn.us for turn in taken]
        if "Nchan" in turns and name != "Nchan":
            theirs = [turn.us for turn in turns["Nchan"]]
            ratio = Spread.of([one / other for one, other in zip(us, theirs, strict=True)])
            text = f"{what}: CPU per delivery, {name} ÷ Nchan"
            rows.append(Row(text, ratio, "ratio", _CPU.get(name)))
        rows += [
            Row(f"{what}: CPU per delivery, {name}", Spread.of(us), "µs"),
            Row(f"{what}: p50, {name}", Spread.of([turn.p50_ms for turn in taken]), "ms"),
            Row(f"{what}: p99, {name}", Spread.of([turn.p99_ms for turn in taken]), "ms"),
        ]
    return rows


def _rows_of_storms(storms: dict[str, list[float]]) -> list[Row]:
    rows: list[Row] = []
    what = f"{CLIENTS} clients come back to {MISSED} missed events"
    for name, taken in storms.items():
        if "Nchan" in storms and name != "Nchan":
            theirs = storms["Nchan"]
            ratio = Spread.of([one / other for one, other in zip(taken, theirs, strict=True)])
            rows.append(Row(f"{what}: {name} ÷ Nchan", ratio, "ratio", _STORM.get(name)))
        rows.append(Row(f"{what}: {name}", Spread.of([1000 * one for one in taken]), "ms"))
    return rows


async def _measure_streams(ours: PasserelleServer, clients: ClientProcess) -> list[Row]:
    """The same rate over few streams and over many."""
    found: dict[int, list[float]] = {FEW: [], MANY: []}
    for count in (FEW, MANY):
        each = 1 if count == FEW else _STREAMS_EACH
        scene = ChannelScene(ours, clients, f"{count} streams", await ours.make_streams(count))
        await scene.open(count // each, each)
        for _ in range(3):
            await scene.publish(RATE, max(count, 4 * RATE) if count == FEW else count)
            found[count].append((await scene.await_all()).p99_ms)
        await scene.close()
    added = statistics.median(found[MANY]) - statistics.median(found[FEW])
    what = f"{RATE} events/s over"
    return [
        Row(f"{what} {FEW} streams: p99", Spread.of(found[FEW]), "ms"),
        Row(f"{what} {MANY} streams: p99", Spread.of(found[MANY]), "ms"),
        Row(f"p99 that {MANY} streams add", Spread.of([added]), "ms", Bound("at most", 10.0)),
    ]


async def _measure_idle(place: int, name: str) -> Row:
    """A new gateway, whose memory has not grown by other work."""
    what = f"{IDLE} idle connections held, {IDLE_STREAMS} streams each: memory, {name}"
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < IDLE + _FILES_SPARE:
        return Row(f"{what} (open files are limited to {soft})", None, "kB", _MEMORY[name])
    async with AsyncExitStack() as stack:
        clients = await stack.enter_async_context(open_clients())
        ours = (await stack.enter_async_context(open_passerelle()))[place]
        streams = await ours.make_streams(IDLE_STREAMS)
        warm = ChannelScene(ours, clients, "warm", streams)
        await warm.open(100, IDLE_STREAMS)
        before = read_resident_bytes(ours.gateway_pid)
        scene = ChannelScene(ours, clients, "idle", streams)
        await scene.open(IDLE, IDLE_STREAMS)
        grown = read_resident_bytes(ours.gateway_pid) - before
        await scene.publish(10, IDLE_STREAMS)
        await scene.await_all()
    return Row(what, Spread.of([grown / IDLE / 1000]), "kB", _MEMORY[name])
