"""Makes the runs of this instance fit the store again after a shard has lost the tail of its history.

A failover or a restore can undo acknowledged writes. The store itself stays consistent, as of an earlier moment; the
memory of the processes that continue does not fit it. So each instance, once a shard has a new epoch, compares the
runs that it drives there with the records and with its own set:

- a run whose record is older than what was acknowledged here is released and adopted again, which asks its agent for
  the whole task;
- a run that the set names and that is not driven, since its end was in the tail, is adopted as well;
- the relay starts over and audits its targets; removing rows in other shards that name lost entities is scheduled
  (``view_rebuild.py``).

Then the next extension of the lease stores that in the set (``seen``): before that, a name in a set proves nothing.
Every component that notices a loss (a driver by its versions, the relay by its marks, a follower by its position, the
lease loop by a missing extension) reports it here, so a loss is repaired even without readers and without runs.
An instance that drives nothing still knows the last events that were acknowledged to it: it checks them after each
reconnect, and at intervals.

Decisions, grants and answers are not written again: their approval requests are open again, and people are asked.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import suppress
from dataclasses import dataclass, field
from time import monotonic
from typing import TYPE_CHECKING, Final, Protocol

from passerelle.core.chunks import in_chunks
from passerelle.core.errors import StoreUnavailable
from passerelle.core.ids import ALL_SHARDS, Shard, shard_of
from passerelle.delegation.runs.lost_tail import has_event
from passerelle.protocol.concurrency import cancel_all, join_all
from passerelle.runtime.common.beat import sleep_until_beat

if TYPE_CHECKING:
    from structlog.typing import FilteringBoundLogger

    from passerelle.delegation.duties.leases import LeaseKeeper
    from passerelle.delegation.duties.relay import Relay
    from passerelle.delegation.duties.row_delivery import LoseTail
    from passerelle.delegation.duties.view_rebuild import ViewRebuild
    from passerelle.store.log import RedisEventLog
    from passerelle.store.maintenance import DriverSet

_TRY_AGAIN_S: Final = 0.5
_RECENT_S: Final = 90.0
_AT_ONCE: Final = 64
LOOK_S: Final = 30.0
"""Seconds between two comparisons of each set with the local runs, whether or not anything was lost."""


class DriverSets(Protocol):
    """Reads the sets of what instances drive."""

    async def read_driver_set(self, shard: Shard, instance: str) -> DriverSet | None:
        """The runs that an instance drives in a shard, by its set."""
        ...


class Drivers(Protocol):
    """The runs of this instance."""

    async def reattach(self, shard: Shard, named: frozenset[str]) -> None:
        """Adopts again the runs that do not fit the store, and those in ``named`` that are ours and not driven."""
        ...

    def adopt_undriven(self, named: frozenset[str]) -> None:
        """Schedules the adoption of tasks that are stored as ours and have no driver."""
        ...


class NoDrivers:
    """For an instance that has duties and drives nothing."""

    async def reattach(self, shard: Shard, named: frozenset[str]) -> None:
        """Does nothing: there is nothing to compare."""

    def adopt_undriven(self, named: frozenset[str]) -> None:
        """Does nothing: this instance drives no runs."""


@dataclass(slots=True)
class TailRepair:
    """``lose`` gives a shard a new epoch, which comes back here through ``note_epoch``."""

    events: RedisEventLog
    sets: DriverSets
    keeper: LeaseKeeper
    relay: Relay
    drivers: Drivers
    view_rebuild: ViewRebuild
    lose: LoseTail
    count_opened: Callable[[], int]
    """How often connections to the store were opened: after a failover another server answers."""
    log: FilteringBoundLogger
    look_s: float = LOOK_S
    _epochs: dict[Shard, int] = field(default_factory=dict["Shard", int])
    """The epoch to which each shard is repaired, or is being repaired."""
    _work: set[asyncio.Task[None]] = field(default_factory=set["asyncio.Task[None]"])

    def find_loss(self, shard: Shard, epoch: int, noticed_by: str) -> None:
        """A write that was acknowledged under ``epoch`` of a shard is missing."""
        self._begin(self._lose(shard, epoch, noticed_by))

    def note_epoch(self, shard: Shard, epoch: int) -> None:
        """A shard has a new epoch: an instance has proved a loss."""
        if self._epochs.get(shard, 0) < epoch:
            self._epochs[shard] = epoch
            self._begin(self._repair(shard, epoch))

    def is_quiet(self, shard: Shard) -> bool:
        """Whether nothing was acknowledged here lately in a shard whose loss the set would have to show."""
        return not self.events.is_written(shard, monotonic() - _RECENT_S)

    async def run(self) -> None:
        """Looks for losses that no reader would notice, and for runs without a driver, until cancelled."""
        opened, looked_s = self.count_opened(), monotonic()
        while True:
            await sleep_until_beat()
            now, now_s = self.count_opened(), monotonic()
            if now == opened and now_s - looked_s < self.look_s:
                continue
            with suppress(StoreUnavailable):
                await self._audit()
                await self._check_drivers()
                opened, looked_s = now, now_s

    async def close(self) -> None:
        """Cancels work in progress; the next driver finds what is left."""
        await cancel_all(self._work)

    def _begin(self, work: Coroutine[None, None, None]) -> None:
        task = asyncio.create_task(work)
        self._work.add(task)
        task.add_done_callback(self._end)

    def _end(self, task: asyncio.Task[None]) -> None:
        self._work.discard(task)
        if not task.cancelled() and (fault := task.exception()) is not None:
            self.log.error("tail.not_repaired", exc_info=fault)

    async def _lose(self, shard: Shard, epoch: int, noticed_by: str) -> None:
        await self._until_done(shard, lambda: self.lose(shard, epoch, noticed_by))

    async def _repair(self, shard: Shard, epoch: int) -> None:
        async def repair() -> None:
            await self.drivers.reattach(shard, await self._list_named(shard))
            await self.view_rebuild.schedule_lost(shard, epoch)

        await self._until_done(shard, repair)
        self.relay.start_over(shard)
        self.keeper.settle(shard, epoch)

    async def _until_done(self, shard: Shard, attempt: Callable[[], Awaitable[None]]) -> None:
        is_logged = False
        while True:
            try:
                await attempt()
            except StoreUnavailable as error:
                if not is_logged:
                    self.log.warning("tail.held", shard=shard.tag, reason=error.reason)
                is_logged = True
                await asyncio.sleep(_TRY_AGAIN_S)
            else:
                return

    async def _audit(self) -> None:
        """Checks that recent acknowledged writes exist; the lease loop would have noticed an older loss."""
        log = self.events
        found = await log.find_unproven(log.list_acknowledged(monotonic() - _RECENT_S))
        for part in in_chunks(found, _AT_ONCE):
            stored = await join_all(
                has_event(log, one.session, one.last, one.chain) for one in part
            )
            for one, is_stored in zip(part, stored, strict=True):
                if not is_stored and not await log.was_forgotten(one.session):
                    self.find_loss(shard_of(one.session), one.epoch, "audit")

    async def _check_drivers(self) -> None:
        held = [shard for shard in ALL_SHARDS if self.keeper.holds(shard)]
        for named in await join_all(map(self._list_named, held)):
            self.drivers.adopt_undriven(named)

    async def _list_named(self, shard: Shard) -> frozenset[str]:
        """The tasks that this instance drives by its set; empty for a lost set, since its runs are moved."""
        found = await self.sets.read_driver_set(shard, self.keeper.instance)
        return frozenset() if found is None or found.gone else found.tasks
