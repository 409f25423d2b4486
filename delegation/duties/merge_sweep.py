"""The duty that merges small segments of the archive, in the shards of this instance."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from passerelle.delegation.duties.failure_log import log_failures

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from structlog.typing import FilteringBoundLogger

    from passerelle.core.ids import Shard
    from passerelle.store.archive.segment_merge import SegmentMerge

_EVERY_S: Final = 3600.0
_MOST: Final = 4
"""New objects of up to 4 MiB per shard and sweep; the rest is left to the next sweep."""
_PAUSE_S: Final = 0.25
"""Pause after each shard with a merge: callers are served meanwhile."""


@dataclass(slots=True)
class MergeSweep:
    """Sweeps once an hour."""

    merge: SegmentMerge
    may_archive: Callable[[], Awaitable[bool]]
    """Whether all instances share the archive's location: with another one there is nothing to merge."""
    duties: Callable[[], frozenset[Shard]]
    read_ms: Callable[[Shard], int]
    log: FilteringBoundLogger
    every_s: float = _EVERY_S
    most: int = _MOST
    pause_s: float = _PAUSE_S

    async def run(self) -> None:
        """Sweeps until cancelled."""
        while True:
            await asyncio.sleep(self.every_s)
            with log_failures(self.log, "archive.merge_failed"):
                if await self.may_archive():
                    await self.sweep()

    async def sweep(self) -> int:
        """Merges once; returns how many segments were merged. A damaged segment is logged, and stays.

        Raises:
            StoreUnavailable: the engine or the archive does not answer; the rest is left to the next sweep.
        """
        merged = 0
        for shard in sorted(self.duties(), key=lambda one: one.number):
            done = await self.merge.merge(shard, self.read_ms(shard), self.most)
            for reason in done.damaged:
                self.log.warning("archive.merge_failed", reason=reason)
            if done.made:
                self.log.info(
                    "archive.merged", segments=done.merged, into=done.made, bytes=done.bytes
                )
                await asyncio.sleep(self.pause_s)
            merged += done.merged
        return merged
