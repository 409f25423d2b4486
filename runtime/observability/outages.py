"""Reports store failures: an outage once at its start and end, a lost history as a new shard epoch, blobs that fail.

A lost history (a failover or a restore that dropped acknowledged writes) is proved by something that this instance saw
acknowledged and the store no longer has: a followed position, a version written by its driver, a mark of its relay, an
extension of its lease. The shard then gets a new epoch, so that every reader is verified again and nothing held in
memory is written over another history (I8). The repair is in ``duties/tail_repair.py``.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from time import monotonic
from typing import TYPE_CHECKING, Final

from passerelle.core.errors import StoreUnavailable
from passerelle.core.ids import Shard
from passerelle.protocol.concurrency import keep_until_done
from passerelle.protocol.cursor import GapReason

if TYPE_CHECKING:
    from structlog.typing import FilteringBoundLogger

    from passerelle.core.ports.log import StreamRef
    from passerelle.runtime.observability.metrics import Metrics
    from passerelle.store.log import RedisEventLog

UNAVAILABLE: Final = "unavailable"
_LOG_EVERY_S: Final = 60.0
_AUDITED_S: Final = 40.0
"""Time after a new epoch in which every position has been audited."""
_PROOFS: Final = frozenset({GapReason.FORKED, GapReason.AHEAD, GapReason.LOST, GapReason.EPOCH})


@dataclass(slots=True)
class Outages:
    """Receives the result of every append, and every stream whose history changed."""

    facts: RedisEventLog
    metrics: Metrics
    log: FilteringBoundLogger
    on_epoch: Callable[[Shard, int], None] = lambda _shard, _epoch: None
    """Called with the new epoch of a shard."""
    _reported: dict[Shard, int] = field(default_factory=dict["Shard", int])
    _noted_s: dict[Shard, float] = field(default_factory=dict["Shard", float])
    _down: bool = False
    _logged_s: float = -math.inf
    """When a failure of the place for content was logged last."""
    _bumps: set[asyncio.Task[None]] = field(default_factory=set["asyncio.Task[None]"])

    def tally(self, result: str, seconds: float, why: str) -> None:
        """Counts one append by its result and time; logs the first failure with its reason (EVC-19)."""
        store = self.metrics.store
        store.appends.counts[(result,)] += 1
        store.append_seconds.observe(seconds)
        if result == UNAVAILABLE and not self._down:
            self.metrics.runtime_errors.labels("store").inc()
            self.log.error("store.unavailable", reason=why)
        elif result != UNAVAILABLE and self._down:
            self.log.info("store.available")
        self._down = result == UNAVAILABLE

    def count_content_failure(self, why: str) -> None:
        """Counts a failure of the place for content; logs at most one a minute."""
        self.metrics.store.blob_failures.inc()
        if monotonic() - self._logged_s >= _LOG_EVERY_S:
            self._logged_s = monotonic()
            self.log.error("blobs.unavailable", reason=why)

    def lose(self, stream: StreamRef, why: GapReason) -> None:
        """Records that a position followed by this instance is no longer valid."""
        self.log.error("stream.history_lost", stream=stream.id, why=why.value)
        if why not in _PROOFS:
            return
        if monotonic() - self._noted_s.get(stream.shard, -math.inf) < _AUDITED_S:
            # The audit after a new epoch finds every invalid position.
            return
        keep_until_done(asyncio.create_task(self._bump(stream.shard)), self._bumps)

    async def lose_tail(self, shard: Shard, epoch: int, noticed_by: str) -> None:
        """Records that writes acknowledged under an epoch are lost: the shard gets a new epoch, unless it has one.

        Raises:
            StoreUnavailable: it is not known to have one.
        """
        fresh = await self.facts.bump_epoch(shard, epoch)
        if self._reported.get(shard) != fresh:
            self._reported[shard] = fresh
            self.metrics.store.lost_tails.labels(noticed_by).inc()
            self.log.error("shard.history_lost", shard=shard.tag, epoch=fresh, by=noticed_by)
        self.note_epoch(shard, fresh)

    def note_epoch(self, shard: Shard, epoch: int) -> None:
        """Records a new epoch of a shard, whichever instance set it."""
        self._noted_s[shard] = monotonic()
        self.on_epoch(shard, epoch)

    async def _bump(self, shard: Shard) -> None:
        try:
            await self.lose_tail(shard, self.facts.shard_epoch(shard), "follower")
        except StoreUnavailable as error:
            # Followers of the shard's streams find the loss again at the next audit.
            self.log.warning("shard.not_bumped", shard=shard.tag, reason=error.reason)

    async def close(self) -> None:
        """Waits for running epoch changes."""
        await asyncio.gather(*self._bumps, return_exceptions=True)
