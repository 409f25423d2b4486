"""One real engine and gateway instances on it, whose duties run or are stepped by the test."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import structlog

from passerelle.core.batch import EntityRef
from passerelle.core.ids import Shard
from passerelle.delegation.duties.due import Handler
from passerelle.delegation.duties.duty_loop import Duties, DutySettings, make_duties
from passerelle.runtime.records.writes import Writes
from passerelle.store.store import Store, StoreSettings
from tests.integration.duties.story import make_writes
from tests.support.engine import Server, engine_server, started_legs

__all__ = ["Instance", "Instances", "engine_server", "instances", "started_legs", "store"]


@dataclass(slots=True)
class Instance:
    """The duties of one gateway process, with its own connections."""

    name: str
    store: Store
    writes: Writes
    duties: Duties
    adopted: list[str]
    lost: list[Shard]

    async def die(self) -> None:
        """Stops as after a kill: nothing is released."""
        running = self.duties._running  # pyright: ignore[reportPrivateUsage]  # a kill has no public form
        assert running is not None
        running.cancel()
        await asyncio.wait((running,))
        await self.duties.taking.close()


@dataclass(slots=True)
class Instances:
    """Creates instances on one engine and closes them."""

    url: str
    blobs: Path
    stack: AsyncExitStack = field(default_factory=AsyncExitStack)
    refuse_adoption: set[str] = field(default_factory=set[str])

    async def start(
        self,
        name: str,
        *,
        lease_ms: int = 5_000,
        handlers: dict[str, Handler] | None = None,
        clock: Callable[[], float] = time.monotonic,
        runs: bool = True,
    ) -> Instance:
        """Creates an instance; with ``runs`` its duties run in the background."""
        store = await self.stack.enter_async_context(
            await Store.open(StoreSettings(self.url, self.blobs))
        )
        writes = make_writes(store)
        adopted: list[str] = []
        lost: list[Shard] = []

        async def adopt(task: EntityRef) -> None:
            if name in self.refuse_adoption:
                raise ConnectionError(name)
            adopted.append(task.id)

        settings = DutySettings(
            instance=name,
            clock=clock,
            on_lost=lost.append,
            adopt=adopt,
            handlers=handlers or {},
            lease_ms=lease_ms,
        )
        duties = make_duties(store, writes, settings, structlog.get_logger())
        instance = Instance(name, store, writes, duties, adopted, lost)
        if runs:
            await self.stack.enter_async_context(duties)
        return instance


@pytest.fixture
async def instances(
    engine_server: Server, tmp_path: Path, anyio_backend: str
) -> AsyncGenerator[Instances]:
    """Instances on an empty engine."""
    made = Instances(engine_server.url, tmp_path / "blobs")
    async with made.stack:
        yield made


@pytest.fixture
async def store(engine_server: Server, tmp_path: Path, anyio_backend: str) -> AsyncGenerator[Store]:
    """A store of the test, separate from those of the instances."""
    async with await Store.open(StoreSettings(engine_server.url, tmp_path / "blobs")) as opened:
        yield opened
