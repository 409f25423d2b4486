"""The measured store: the embedded engine as the gateway starts it, and callers in this process.

Only the rewrite of the append-only file is disabled, since it would begin during a round.
"""

from __future__ import annotations

import asyncio
import tempfile
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TypeVar

from bench.rows import MeasurementError
from bench.usage import read_cpu_s
from bench.workload import BenchTask
from passerelle.core.batch import Appended, Batch
from passerelle.store.archive.owner_keys import KeySealer
from passerelle.store.connection import Endpoint
from passerelle.store.engine import EmbeddedEngine
from passerelle.store.engine_process import EngineSettings
from passerelle.store.store import Store, StoreSettings

_NO_REWRITE: Final = ("--auto-aof-rewrite-percentage", "0")
_AT_ONCE: Final = 128
_What = TypeVar("_What")


@dataclass(frozen=True, slots=True)
class StoreBench:
    """An open store, the location of its engine and blobs, and the engine's process id."""

    store: Store
    url: str
    blobs: Path
    engine_pid: int

    @property
    def endpoint(self) -> Endpoint:
        """The endpoint of the engine."""
        return self.store.nodes.all[0].endpoint

    def epoch(self, subject: BenchTask) -> int:
        """The epoch of the shard of a task."""
        return self.store.log.shard_epoch(subject.shard)

    async def append(self, subject: BenchTask, batch: Batch) -> None:
        """Appends as the gateway does, and updates ``subject`` to the stored state."""
        accept_result(subject, await self.store.log.append(batch))


def accept_result(subject: BenchTask, result: object) -> None:
    """Updates ``subject`` to the stored state.

    Raises:
        MeasurementError: the append was refused.
    """
    if not isinstance(result, Appended):
        raise MeasurementError(f"an append was answered with {result}")
    subject.settle(result.last)


@dataclass(frozen=True, slots=True)
class AppendCost:
    """The cost of appends: rate per second, and CPU microseconds per append, in this process and in the engine."""

    rate: float
    client_us: float
    engine_us: float


@asynccontextmanager
async def open_bench(
    sealer: KeySealer | None = None, options: tuple[str, ...] = _NO_REWRITE
) -> AsyncGenerator[StoreBench]:
    """A new engine and a store over it; both end with the block, and their data is deleted.

    ``sealer`` is the store's; ``options`` are added to the engine's.
    """
    async with AsyncExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="psr-bench-")))
        blobs = folder / "blobs"
        engine = await stack.enter_async_context(
            await EmbeddedEngine.start(EngineSettings(folder, extra_options=options))
        )
        store = await stack.enter_async_context(
            await Store.open(StoreSettings(engine.url, blobs, sealer=sealer))
        )
        if engine.pid is None:
            raise MeasurementError("the engine is gone")
        yield StoreBench(store, engine.url, blobs, engine.pid)


async def drive(
    bench: StoreBench, callers: int, seconds: float, work: Callable[[int], Awaitable[object]]
) -> AppendCost:
    """``callers`` repeat ``work(caller)`` for some seconds; returns the cost of one call."""
    done = 0
    clock = time.perf_counter
    engine_s, client_s, started = read_cpu_s(bench.engine_pid), time.process_time(), clock()
    deadline = started + seconds

    async def repeat(caller: int) -> None:
        nonlocal done
        while clock() < deadline:
            await work(caller)
            done += 1

    async with asyncio.TaskGroup() as group:
        for caller in range(callers):
            group.create_task(repeat(caller))
    wall_s = clock() - started
    client_s = time.process_time() - client_s
    engine_s = read_cpu_s(bench.engine_pid) - engine_s
    return AppendCost(done / wall_s, 1e6 * client_s / done, 1e6 * engine_s / done)


async def do_all(subjects: Iterable[_What], work: Callable[[_What], Awaitable[None]]) -> None:
    """Runs ``work`` for each task, with bounded concurrency."""
    waiting = iter(subjects)

    async def repeat() -> None:
        for subject in waiting:
            await work(subject)

    async with asyncio.TaskGroup() as group:
        for _ in range(_AT_ONCE):
            group.create_task(repeat())
