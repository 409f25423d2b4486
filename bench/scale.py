"""The cost of a task among a million others, most of them in the archive.

A gateway creates one task in each shard; its appends are repeated under other ids until the requested number is
reached. Then one gateway over a thousand tasks and one over all of them take turns.
"""

from __future__ import annotations

import itertools
import tempfile
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import yaml

from bench.engines import StoreBench, drive, open_bench
from bench.kinds import CALLERS, COMPLETED, WARM_S, RoundPlan, make_call
from bench.load import LoadOrder
from bench.rows import Bound, Row, Spread
from bench.steps import RequestStep
from bench.testbed import KEY, LIMITS, LoadProcess, open_load
from bench.usage import CpuMeter, read_used_bytes
from passerelle.core.ids import ALL_SHARDS, Shard
from passerelle.core.wire.json import JsonObject
from passerelle.demo.processes import GatewayProcess
from passerelle.gateway.auth.keys import hash_key
from passerelle.runtime.common.clock import SystemIds
from passerelle.runtime.common.sealer import make_sealer, read_keys
from passerelle.runtime.common.secret import Secret
from passerelle.store.archive.archiver import MOST_AT_ONCE
from tests.integration.callers.rig import KEY as SECRET
from tests.integration.callers.rig import open_rig
from tests.support.copies import TaskCopies, TaskPopulation, record_task

FEW: Final = 1_000
SOON: Final = 20_000
"""With fewer tasks in the archive, its fixed cost weighs too much on each."""
_LIVE_SHARE: Final = 10
"""One task in this many stays in the engine."""
_LARGE_BYTES: Final = 64_000
_AGENT: Final = "echo"
_NOBODY: Final = "http://127.0.0.1:9"
_CLIENT: Final = "bench"
_PART: Final = MOST_AT_ONCE * len(ALL_SHARDS)
"""Tasks that are written and then archived: a whole segment of each shard."""
_READS: Final = 256
_PAGE: Final = 10
_SLOWER: Final = Bound("at most", 1.15)
_BYTES: Final = Bound("at most", 256)


@dataclass(slots=True)
class PopulatedStore:
    """A store with copies, and its gateway; ``live`` are the numbers of the copies in its engine."""

    bench: StoreBench
    population: TaskPopulation
    live: range
    process: GatewayProcess
    next_copy: Iterator[int]

    @property
    def meter(self) -> CpuMeter:
        """Of gateway and engine."""
        pid = self.process.child.process.pid if self.process.child else 0
        return CpuMeter((pid, self.bench.engine_pid))


async def measure_scale(many: int, length: RoundPlan) -> AsyncGenerator[Row]:
    """Rows of the section: ``many`` tasks, of which nine of ten are in the archive."""
    archived = many - many // _LIVE_SHARE
    async with AsyncExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="psr-bench-")))
        short, long = await _record(folder)
        sealer = make_sealer(read_keys(Secret(SECRET), "secret_key"), SystemIds().draw)
        small, large = [
            await stack.enter_async_context(open_bench(sealer, options=())) for _ in range(2)
        ]
        few, population = TaskPopulation(small.store, short), TaskPopulation(large.store, short)
        empty = await read_used_bytes(large.endpoint)
        for first, last in itertools.pairwise(sorted({0, min(SOON, archived), archived})):
            for part in range(first, last, _PART):
                leaving = range(part, min(part + _PART, last))
                await population.write_all(leaving)
                await population.archive(leaving)
            weight = (await read_used_bytes(large.endpoint) - empty) / last
            what = f"engine memory of an archived task, of {last // 1000} k"
            yield Row(what, Spread.of([weight]), "B", _BYTES)
        await few.write_all(range(FEW))
        await population.write_all(range(archived, many))
        texts = TaskPopulation(large.store, [long])
        await texts.write_all(range(_READS))
        await texts.archive(range(_READS))
        load = await stack.enter_async_context(open_load())
        sides = [
            PopulatedStore(
                bench, of, live, await _serve(stack, folder / name, bench), itertools.count(many)
            )
            for name, bench, of, live in (
                ("small", small, few, range(FEW)),
                ("large", large, population, range(archived, many)),
            )
        ]
        async for row in _compare(load, sides, length):
            yield row
        steps = [_get(texts.name_task(number)) for number in range(_READS)]
        costs = [await _read(load, sides[1], steps, 0) for _ in range(length.rounds)]
        what = f"GetTask of {_LARGE_BYTES // 1000} kB in the archive: CPU of gateway and engine"
        milliseconds = [sum(cost) / 1000 for cost in costs]
        yield Row(what, Spread.of(milliseconds), "ms", Bound("at most", 3))


async def _record(folder: Path) -> tuple[list[TaskCopies], TaskCopies]:
    """Makes a gateway with a separate store create a short task in each shard, and one with much text."""
    async with open_bench() as bench, open_rig(bench.url, folder) as rig:
        at = await rig.start(clients=[{"name": _CLIENT}])
        short = dict[Shard, TaskCopies]()
        while len(short) < len(ALL_SHARDS):
            one = await record_task(at, _CLIENT, "hello")
            short.setdefault(one.shard, one)
        return [*short.values()], await record_task(at, _CLIENT, "x" * _LARGE_BYTES)


async def _serve(stack: AsyncExitStack, folder: Path, bench: StoreBench) -> GatewayProcess:
    folder.mkdir()  # noqa: ASYNC240  nothing else runs yet
    config = folder / "bench.yaml"
    config.write_text(yaml.safe_dump(_set_up(bench)), encoding="utf-8")
    process = GatewayProcess(folder, config)
    stack.push_async_callback(process.stop)
    await process.start()
    return process


def _set_up(bench: StoreBench) -> JsonObject:
    return {
        "redis_url": bench.url,
        "blobs": str(bench.blobs),
        "secret_key": SECRET,
        "retention": {"memory": None},
        "agents": [{"name": _AGENT, "url": _NOBODY}],
        "clients": [
            {
                "name": _CLIENT,
                "key_hash": hash_key(Secret(KEY)),
                "may_call": ["*"],
                "limits": LIMITS,
            }
        ],
    }


async def _compare(
    load: LoadProcess, sides: Sequence[PopulatedStore], length: RoundPlan
) -> AsyncGenerator[Row]:
    """The cost at the larger store ÷ that at the smaller one."""
    works: dict[str, Callable[[PopulatedStore, float], Awaitable[tuple[float, float]]]] = {
        "GetTask": lambda side, seconds: _read(load, side, _gets(side), seconds),
        f"ListTasks, page of {_PAGE}": lambda side, seconds: _read(load, side, [_LIST], seconds),
        "append of a task": _append,
    }
    for name, work in works.items():
        ratios, own = list[tuple[float, float]](), list[float]()
        for number in range(length.rounds + 1):
            costs = [await work(side, length.seconds if number else WARM_S) for side in sides]
            if number:
                (gateway, engine), (more, more_engine) = costs
                ratios.append(((more + more_engine) / (gateway + engine), more_engine / engine))
                own.append(more + more_engine)
        yield Row(
            f"{name}: CPU ÷ at {FEW // 1000} k",
            Spread.of([one for one, _ in ratios]),
            "ratio",
            _SLOWER,
        )
        yield Row(f"{name}: CPU of the engine ÷", Spread.of([one for _, one in ratios]), "ratio")
        yield Row(f"{name}: CPU of gateway and engine", Spread.of(own), "µs")


async def _read(
    load: LoadProcess, side: PopulatedStore, steps: Sequence[RequestStep], seconds: float
) -> tuple[float, float]:
    """CPU µs of gateway and engine per answer; without seconds each step is executed once."""
    callers = CALLERS if seconds else 1
    url = f"{side.process.url}/agents/{_AGENT}"
    order = LoadOrder("send", url, steps, callers, seconds, [KEY])
    before = side.meter.read()
    outcome = await load.execute(order)
    gateway, engine = (
        1e6 * (now - then) / outcome.count
        for now, then in zip(side.meter.read(), before, strict=True)
    )
    return gateway, engine


async def _append(side: PopulatedStore, seconds: float) -> tuple[float, float]:
    """CPU µs of the caller and of the engine for all appends of a task."""

    async def append(_: int) -> None:
        await side.population.write(next(side.next_copy))

    cost = await drive(side.bench, CALLERS, seconds, append)
    return cost.client_us, cost.engine_us


def _gets(side: PopulatedStore) -> list[RequestStep]:
    stride = max(1, len(side.live) // _READS)
    return [_get(side.population.name_task(number)) for number in side.live[::stride]]


def _get(task: str) -> RequestStep:
    return RequestStep(make_call("GetTask", {"id": task}), COMPLETED)


_LIST: Final = RequestStep(
    make_call("ListTasks", {"pageSize": _PAGE}), "nextPageToken", counted=COMPLETED, times=_PAGE
)
