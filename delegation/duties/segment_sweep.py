"""The duty that deletes archive segments that nothing references, in the shards of this instance."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from passerelle.core.errors import ArchiveDamaged
from passerelle.delegation.duties.failure_log import log_failures

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from structlog.typing import FilteringBoundLogger

    from passerelle.core.ids import Shard
    from passerelle.store.archive.segment_cleanup import SegmentCleanup

_FIRST_S: Final = 600.0
_EVERY_S: Final = 24 * 3600.0


@dataclass(slots=True)
class SegmentSweep:
    """Sweeps once a day, and ten minutes after the start."""

    cleanup: SegmentCleanup
    may_archive: Callable[[], Awaitable[bool]]
    """Whether all instances share the archive's location: with another one there is nothing to delete."""
    duties: Callable[[], frozenset[Shard]]
    read_ms: Callable[[Shard], int]
    log: FilteringBoundLogger
    first_s: float = _FIRST_S
    every_s: float = _EVERY_S

    async def run(self) -> None:
        """Sweeps until cancelled."""
        await asyncio.sleep(self.first_s)
        while True:
            with log_failures(self.log, "archive.cleanup_failed"):
                if await self.may_archive():
                    await self.sweep()
            await asyncio.sleep(self.every_s)

    async def sweep(self) -> int:
        """Cleans up once; returns how many objects were deleted. A damaged shard does not stop the others.

        Raises:
            StoreUnavailable: the engine or the archive does not answer; the rest is left to the next sweep.
        """
        deleted = size = 0
        for shard in sorted(self.duties(), key=lambda one: one.number):
            try:
                done = await self.cleanup.clean(shard, self.read_ms(shard))
            except ArchiveDamaged as error:
                self.log.warning("archive.cleanup_failed", reason=str(error))
                continue
            deleted += done.deleted
            size += done.bytes
        if deleted:
            self.log.info("archive.cleaned", segments=deleted, bytes=size)
        return deleted
