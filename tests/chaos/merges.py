"""Segments of the archive are merged concurrently with everything else, and each merge is interrupted in the middle."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from random import Random
from typing import TYPE_CHECKING, Final

from passerelle.core.errors import StoreUnavailable
from passerelle.core.ids import ALL_SHARDS

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from passerelle.core.ids import Shard
    from passerelle.store.store import Store

_FEW: Final = 2
"""A round has few segments per shard."""
_PAUSE_S: Final = 0.01
_LONGEST_S: Final = 0.2


@dataclass
class Merges:
    """Statistics: merged segments, and interrupted merges."""

    store: Store
    merged: int = 0
    cut: int = 0

    async def merge_all(self) -> None:
        """Merges each shard once, to the end."""
        for shard in ALL_SHARDS:
            await self.merge(shard)

    async def merge(self, shard: Shard) -> None:
        """Merges one shard once, to the end."""
        merge = replace(self.store.segment_merge, few=_FEW)
        self.merged += (await merge.merge(shard, self.store.clock.read_ms(shard), 8)).merged

    async def run(self) -> None:
        """Runs until cancelled; the store may be unavailable."""
        chance = Random(1)
        while True:
            await asyncio.sleep(_PAUSE_S)
            try:
                async with asyncio.timeout(chance.uniform(0, _LONGEST_S)):
                    await self.merge(chance.choice(ALL_SHARDS))
            except TimeoutError:
                self.cut += 1
            except StoreUnavailable:
                pass


@asynccontextmanager
async def merge_meanwhile(store: Store) -> AsyncGenerator[Merges]:
    """Merges for the duration of the block."""
    merges = Merges(store)
    running = asyncio.create_task(merges.run())
    try:
        yield merges
    finally:
        running.cancel()
        await asyncio.wait((running,))
