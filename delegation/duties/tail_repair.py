"""After a shard has lost the tail of its history: what this instance drives there is made to fit what is stored.

A failover or a restore can take acknowledged writes. The store is consistent in itself then, as it was at an older
moment; what does not fit is in the memory of the processes that go on. So each instance, once a shard has a new epoch,
compares what it drives there with the records and with its own set:

- a run whose record is older than what was acknowledged here is released and taken up again, which asks its agent for
  all that it has said;
- a run that the set names and that is not driven, since it had ended in the tail, is taken up as well;
- the relay begins again, and compares what its targets have; rows in other shards that name what is gone are owed to
  be taken out (``view_rebuild.py``).

Then the next extension of the lease says so in the set (``seen``): a name in a set proves nothing before. Whoever
notices a loss (a driver by its versions, the relay by its marks, a follower by its position, the lease loop by an
extension that is gone) comes here, so a loss is repaired where nobody reads and nothing is driven, too.

An instance that drives nothing has what it was last told as stored: those events are looked for after each trouble with
the connection, and now and then.

Decisions, grants and answers are not written again: their questions are open once more, and people are asked.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import suppress
from dataclasses import dataclass, field
from time import monotonic
from typing import TYPE_CHECKING, Final, Protocol

from passerelle.core.errors import StoreUnavailable
from passerelle.core.ids import ALL_SHARDS, Shard, shard_of
from passerelle.delegation.runs.lost_tail import has_event
from passerelle.runtime.common.beat import sleep_until_beat
from passerelle.runtime.common.concurrency import join_all

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
"""So often each set of ours is compared with what is driven, whether or not anything was lost."""


class DriverSets(Protocol):
    """The sets of what instances drive."""

    async def read_driver_set(self, shard: Shard, instance: str) -> DriverSet | None:
        """What an instance drives in a shard, by its set."""
        ...


class Drivers(Protocol):
    """What this instance drives."""

    async def reattach(self, shard: Shard, named: frozenset[str]) -> None:
        """Takes up again what does not fit the store, and what is ours by it (``named``) and not driven."""
        ...

    def adopt_undriven(self, named: frozenset[str]) -> None:
        """Has tasks taken up that are ours by the store and that nobody drives, in a while."""
        ...


class NoDrivers:
    """Of an instance that has duties and drives nothing."""

    async def reattach(self, shard: Shard, named: frozenset[str]) -> None:
        """There is nothing to compare."""

    def adopt_undriven(self, named: frozenset[str]) -> None:
        """There is nobody who could."""


@dataclass(slots=True)
class TailRepair:
    """``lose`` gives a shard a new epoch, and comes back here with it (``note_epoch``)."""

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
    """The epoch to which each shard is being, or has been, repaired."""
    _work: set[asyncio.Task[None]] = field(default_factory=set["asyncio.Task[None]"])

    def find_loss(self, shard: Shard, epoch: int, noticed_by: str) -> None:
        """Something that was acknowledged under an epoch of a shard is gone."""
        self._begin(self._lose(shard, epoch, noticed_by))

    def note_epoch(self, shard: Shard, epoch: int) -> None:
        """A shard has a new epoch: somebody has proved a loss."""
        if self._epochs.get(shard, 0) < epoch:
            self._epochs[shard] = epoch
            self._begin(self._repair(shard, epoch))

    def is_quiet(self, shard: Shard) -> bool:
        """Whether nothing was acknowledged here lately in a shard, whose loss our set would show."""
        return not self.events.is_written(shard, monotonic() - _RECENT_S)

    async def run(self) -> None:
        """Looks for losses that nobody else would notice, and for runs that nobody drives, until cancelled."""
        opened, looked_s = self.count_opened(), monotonic()
        while True:
            await sleep_until_beat()
            now, now_s = self.count_opened(), monotonic()
            if now == opened and now_s - looked_s < self.look_s:
                continue
            with suppress(StoreUnavailable):
                await self._audit()
                await self._look()
                opened, looked_s = now, now_s

    async def close(self) -> None:
        """Ends what is under way; the next driver finds what is left."""
        work = [*self._work]
        for task in work:
            task.cancel()
        await asyncio.gather(*work, return_exceptions=True)

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
        """What was acknowledged here lately has to be there; what is older the lease loop would have missed."""
        log = self.events
        found = await log.find_unproven(log.list_acknowledged(monotonic() - _RECENT_S))
        for first in range(0, len(found), _AT_ONCE):
            part = found[first : first + _AT_ONCE]
            stored = await join_all(
                has_event(log, one.session, one.last, one.chain) for one in part
            )
            for one, is_stored in zip(part, stored, strict=True):
                if not is_stored and not await log.was_forgotten(one.session):
                    self.find_loss(shard_of(one.session), one.epoch, "audit")

    async def _look(self) -> None:
        held = [shard for shard in ALL_SHARDS if self.keeper.holds(shard)]
        for named in await join_all(map(self._list_named, held)):
            self.drivers.adopt_undriven(named)

    async def _list_named(self, shard: Shard) -> frozenset[str]:
        """The tasks that our set says we drive; none in a set that we have lost, since its runs are moved."""
        found = await self.sets.read_driver_set(shard, self.keeper.instance)
        return frozenset() if found is None or found.gone else found.tasks
