"""What is said when the store fails us: an outage once at its beginning and end, a lost history as a new shard epoch.

A lost history (a failover or a restore that forgot acknowledged writes) is proved by something that this instance saw
acknowledged and the store no longer has: a position that it followed, a version that its driver wrote, a mark of its
relay, an extension of its lease. The shard then gets a new epoch, so that every reader is verified again and nothing
that was held in memory is written over another history (I8). What follows is in ``duties/tail_repair.py``.
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
from passerelle.protocol.cursor import GapReason

if TYPE_CHECKING:
    from structlog.typing import FilteringBoundLogger

    from passerelle.core.ports.log import StreamRef
    from passerelle.runtime.observability.metrics import Metrics
    from passerelle.store.log import RedisEventLog

UNAVAILABLE: Final = "unavailable"
_AUDITED_S: Final = 40.0
"""So long after a new epoch every position has been audited."""
_PROOFS: Final = frozenset({GapReason.FORKED, GapReason.AHEAD, GapReason.LOST, GapReason.EPOCH})


@dataclass(slots=True)
class Outages:
    """Told of every append and of every stream whose history changed."""

    facts: RedisEventLog
    metrics: Metrics
    log: FilteringBoundLogger
    on_epoch: Callable[[Shard, int], None] = lambda _shard, _epoch: None
    """Told of the new epoch of a shard."""
    _told: dict[Shard, int] = field(default_factory=dict["Shard", int])
    _noted_s: dict[Shard, float] = field(default_factory=dict["Shard", float])
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
        if monotonic() - self._noted_s.get(stream.shard, -math.inf) < _AUDITED_S:
            # The audit that follows on a new epoch finds every position that does not hold.
            return
        task = asyncio.create_task(self._bump(stream.shard))
        self._bumps.add(task)
        task.add_done_callback(self._bumps.discard)

    async def lose_tail(self, shard: Shard, epoch: int, noticed_by: str) -> None:
        """Something is gone that was acknowledged under an epoch: the shard gets a new one, unless it has it already.

        Raises:
            StoreUnavailable: it has none yet, as far as is known.
        """
        fresh = await self.facts.bump_epoch(shard, epoch)
        if self._told.get(shard) != fresh:
            self._told[shard] = fresh
            self.metrics.store.lost_tails.labels(noticed_by).inc()
            self.log.error("shard.history_lost", shard=shard.tag, epoch=fresh, by=noticed_by)
        self.note_epoch(shard, fresh)

    def note_epoch(self, shard: Shard, epoch: int) -> None:
        """A shard has a new epoch, whoever gave it."""
        self._noted_s[shard] = monotonic()
        self.on_epoch(shard, epoch)

    async def _bump(self, shard: Shard) -> None:
        try:
            await self.lose_tail(shard, self.facts.shard_epoch(shard), "follower")
        except StoreUnavailable as error:
            # Whoever follows a stream of the shard finds the loss again at the next audit.
            self.log.warning("shard.not_bumped", shard=shard.tag, reason=error.reason)

    async def close(self) -> None:
        """Waits for what is under way."""
        await asyncio.gather(*self._bumps, return_exceptions=True)
