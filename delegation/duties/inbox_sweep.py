"""The duty that removes entries older than ``retention.inbox`` from inboxes, in the shards of this instance."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from passerelle.core.ids import shard_of
from passerelle.delegation.duties.failure_log import log_failures

if TYPE_CHECKING:
    from collections.abc import Callable

    from structlog.typing import FilteringBoundLogger

    from passerelle.core.ids import Shard
    from passerelle.store.inboxes import RedisInboxes

_LOOKS: Final = 5
"""Sweeps within the time for which an entry stays."""
_SOONEST_S: Final = 1.0
_LATEST_S: Final = 6 * 3600.0


@dataclass(slots=True)
class InboxSweep:
    """Sweeps inboxes at intervals."""

    inboxes: RedisInboxes
    duties: Callable[[], frozenset[Shard]]
    read_ms: Callable[[Shard], int]
    log: FilteringBoundLogger
    keep_ms: int | None = None
    """How long an entry stays, in ms; None: until its inbox exceeds its size limit."""

    async def run(self) -> None:
        """Sweeps until cancelled."""
        if self.keep_ms is None:
            return
        every_s = min(max(self.keep_ms / 1000 / _LOOKS, _SOONEST_S), _LATEST_S)
        while True:
            await asyncio.sleep(every_s)
            with log_failures(self.log, "inbox.sweep_failed"):
                await self.sweep(self.keep_ms)

    async def sweep(self, keep_ms: int) -> int:
        """Removes older entries; returns how many.

        Raises:
            StoreUnavailable: the store does not answer; entries that were removed stay removed.
        """
        dropped = 0
        for owner in await self.inboxes.list_owners(self.duties()):
            now_ms = self.read_ms(shard_of(owner))
            dropped += await self.inboxes.trim(owner, now_ms - keep_ms, now_ms)
        for owner in await self.inboxes.list_followers(self.duties()):
            now_ms = self.read_ms(shard_of(owner))
            dropped += await self.inboxes.trim_notes(owner, now_ms - keep_ms, now_ms)
        if dropped:
            self.log.info("inbox.swept", entries=dropped)
        return dropped
