"""What is said when the store fails us: an outage once at its beginning and end, a lost history as a new shard epoch.

A lost history (a failover or a restore that forgot acknowledged writes) is proved by a position that this instance
followed itself and the store no longer has. The shard then gets a new epoch, so that every reader is verified again
and nothing that was held in memory is written over another history (I8).
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from passerelle.channels.cursor import GapReason
from passerelle.core.errors import StoreUnavailable

if TYPE_CHECKING:
    from structlog.typing import FilteringBoundLogger

    from passerelle.core.ids import Shard
    from passerelle.core.ports.log import StreamRef
    from passerelle.gateway.metrics import Metrics
    from passerelle.store.log import RedisEventLog

UNAVAILABLE: Final = "unavailable"
_PROOFS: Final = frozenset({GapReason.FORKED, GapReason.AHEAD, GapReason.LOST, GapReason.EPOCH})


@dataclass(slots=True)
class Outages:
    """Told of every append and of every stream whose history changed."""

    facts: RedisEventLog
    metrics: Metrics
    log: FilteringBoundLogger
    _down: bool = False
    _bumps: set[asyncio.Task[None]] = field(default_factory=set["asyncio.Task[None]"])

    def tally(self, result: str, seconds: float, why: str) -> None:
        """Counts one append by its result and its time; the first one that fails is said, and why (EVC-19)."""
        store = self.metrics.store
        store.appends.counts[(result,)] += 1
        store.append_seconds.observe(seconds)
        if result == UNAVAILABLE and not self._down:
            self.metrics.runtime_errors.labels("store").inc()
            self.log.error("store.away", reason=why)
        elif result != UNAVAILABLE and self._down:
            self.log.info("store.back")
        self._down = result == UNAVAILABLE

    def lose(self, stream: StreamRef, why: GapReason) -> None:
        """A position that this instance followed is no longer true."""
        self.log.error("stream.history_lost", stream=stream.id, why=why.value)
        if why not in _PROOFS:
            return
        task = asyncio.create_task(self._bump(stream.shard))
        self._bumps.add(task)
        task.add_done_callback(self._bumps.discard)

    async def _bump(self, shard: Shard) -> None:
        try:
            epoch = await self.facts.bump_epoch(shard, self.facts.shard_epoch(shard))
        except StoreUnavailable as error:
            # Whoever follows a stream of the shard finds the loss again at the next audit.
            self.log.warning("shard.not_bumped", shard=shard.tag, reason=error.reason)
        else:
            self.log.warning("shard.epoch", shard=shard.tag, epoch=epoch)

    async def close(self) -> None:
        """Waits for what is under way."""
        await asyncio.gather(*self._bumps, return_exceptions=True)
