"""The background duties of one instance, started and stopped together: leases, due rows, takeover, relay, sweeps.

They run in one task group. When a part crashes, the others end too and ``failed`` returns the fault: a gateway
without duties would accept work that nothing takes over.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Self

from passerelle.core.frozen import frozen
from passerelle.delegation.duties.due import DueLoop, Handler
from passerelle.delegation.duties.factless_writes import FactlessWrites
from passerelle.delegation.duties.leases import LEASE_MS, LeaseKeeper
from passerelle.delegation.duties.relay import Relay
from passerelle.delegation.duties.shard_watch import ShardWatch
from passerelle.delegation.duties.sweeps import SweepCounts, Sweeps, make_sweeps
from passerelle.delegation.duties.tail_repair import NoDrivers, TailRepair
from passerelle.delegation.duties.takeover import ADOPT, Adopt, LoseLink, TakeOver
from passerelle.delegation.duties.view_rebuild import REBUILD, ViewRebuild
from passerelle.runtime.records.task_fields import LEASE

if TYPE_CHECKING:
    from structlog.typing import FilteringBoundLogger

    from passerelle.core.ids import Shard
    from passerelle.delegation.duties.row_delivery import LoseTail
    from passerelle.delegation.duties.tail_repair import Drivers
    from passerelle.runtime.records.writes import Writes
    from passerelle.store.store import Store

STOP_S: Final = 2.0


@dataclass(slots=True)
class Duties:
    """Made by ``make_duties``. ``start`` opens the leases, ``stop`` releases them within ``STOP_S``."""

    keeper: LeaseKeeper
    due: DueLoop
    relay: Relay
    factless_writes: FactlessWrites
    taking: TakeOver
    repair: TailRepair
    view_rebuild: ViewRebuild
    watch: ShardWatch
    sweeps: Sweeps
    log: FilteringBoundLogger
    _running: asyncio.Task[None] | None = None

    @property
    def failed(self) -> BaseException | None:
        """The fault that ended the duties, if any."""
        task = self._running
        return task.exception() if task and task.done() and not task.cancelled() else None

    async def wait_failed(self) -> None:
        """Returns when a fault has ended the duties; does not return when they were stopped."""
        if self._running is not None:
            await asyncio.wait((self._running,))

    def wake(self, shard: Shard, within_s: float = 0.0) -> None:
        """Something was appended in a shard: a due row may be set, or a projection may have to run.

        Both run within ``within_s``, so that several appends share one visit each.
        """
        self.due.wake(shard, within_s)
        self.relay.wake(shard, within_s)

    async def start(self) -> None:
        """Opens the leases and starts the duties.

        Raises:
            StoreUnavailable: the store does not answer.
        """
        await self.keeper.start()
        self._running = asyncio.create_task(self._run(), name="duties")
        self._running.add_done_callback(self._report)

    async def stop(self) -> None:
        """Cancels work in progress and releases the leases; what is left comes due for other instances."""
        if self._running is not None:
            self._running.cancel()
            await asyncio.wait((self._running,), timeout=STOP_S / 2)
            self._running = None
        await self.taking.close()
        await self.repair.close()
        await self.view_rebuild.close()
        try:
            async with asyncio.timeout(STOP_S / 2):
                await self.keeper.release()
        except TimeoutError:
            self.log.warning("lease.release_cut", after_s=STOP_S / 2)

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self.stop()

    def _report(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (fault := task.exception()) is not None:
            self.log.critical("duties.crashed", exc_info=fault)

    async def _run(self) -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(self.keeper.run(), name="leases")
            group.create_task(self.due.run(), name="due")
            group.create_task(self.relay.run(), name="relay")
            group.create_task(self.repair.run(), name="repair")
            group.create_task(self.watch.run(), name="watch")
            self.sweeps.start(group)


@frozen
class DutySettings:
    """``handlers`` are the handlers of ``delegation`` by kind of row; leases and adoptions are handled here.

    ``on_lost(shard)`` drops the runs of a shard, ``adopt(task)`` re-attaches to a run that was moved to this instance.
    ``count(what, outcome)`` counts for the metrics; ``clock`` is monotonic, in seconds.
    """

    instance: str
    clock: Callable[[], float]
    on_lost: Callable[[Shard], None]
    adopt: Adopt
    handlers: Mapping[str, Handler]
    lease_ms: int = LEASE_MS
    lose_link: LoseLink | None = None
    count: Callable[[str, str], None] = lambda _what, _outcome: None
    lose: LoseTail | None = None
    """Called with a shard that has lost acknowledged writes; without it, the shard only gets a new epoch."""
    drivers: Drivers | None = None
    """The runs of this instance, to be compared with the store after a loss."""
    note_epoch: Callable[[Shard, int], None] | None = None
    """Called with a new epoch that the lease loop has read; it comes back to ``TailRepair.note_epoch``."""
    sweep_counts: SweepCounts = SweepCounts()


def make_duties(
    store: Store, writes: Writes, settings: DutySettings, log: FilteringBoundLogger
) -> Duties:
    """Builds the duties of one instance over a store; starts nothing."""
    keeper = LeaseKeeper(
        leases=store.leases,
        instance=settings.instance,
        clock=settings.clock,
        on_lost=settings.on_lost,
        log=log,
        lease_ms=settings.lease_ms,
    )

    def read_shards() -> frozenset[Shard]:
        return keeper.duties

    due = DueLoop(
        due=store.due,
        handlers=settings.handlers,
        duties=read_shards,
        log=log,
        lease_ms=settings.lease_ms,
        count=settings.count,
    )
    factless_writes = FactlessWrites(store.log, writes.ids)
    view_rebuild = ViewRebuild(store, writes, factless_writes, log, due.wake)

    async def bump(shard: Shard, epoch: int, _who: str) -> None:
        repair.note_epoch(shard, await store.log.bump_epoch(shard, epoch))

    lose = settings.lose or bump
    relay = Relay(
        facts=store.relay_facts,
        projections=store.relay_projections,
        duties=read_shards,
        log=log,
        shard_epoch=store.log.shard_epoch,
        learn_epochs=store.log.read_epochs,
        lose=lose,
        rebuild=view_rebuild.schedule_all,
        count=lambda outcome: settings.count("relay", outcome),
    )
    repair = TailRepair(
        store.log,
        store.inspection,
        keeper,
        relay,
        settings.drivers or NoDrivers(),
        view_rebuild,
        lose,
        lambda: store.nodes.opened,
        log,
    )
    taking = _make_takeover(store, writes, factless_writes, keeper, due, settings, log)
    due.handlers = {
        **settings.handlers,
        LEASE: taking.take_over,
        ADOPT: taking.take_up,
        REBUILD: view_rebuild.rebuild,
    }
    _connect_leases(keeper, due, relay, taking, repair, settings)
    watch = ShardWatch(
        store.shard_poll,
        read_shards,
        due.wake,
        relay.wake,
        writes.read_ms,
        is_alone=lambda: keeper.is_alone,
    )
    sweeps = make_sweeps(store, writes, read_shards, settings.sweep_counts, log)
    return Duties(
        keeper, due, relay, factless_writes, taking, repair, view_rebuild, watch, sweeps, log
    )


def _make_takeover(
    store: Store,
    writes: Writes,
    factless_writes: FactlessWrites,
    keeper: LeaseKeeper,
    due: DueLoop,
    settings: DutySettings,
    log: FilteringBoundLogger,
) -> TakeOver:
    return TakeOver(
        leases=store.leases,
        writes=writes,
        factless_writes=factless_writes,
        keeper=keeper,
        adopt=settings.adopt,
        log=log,
        wake=due.wake,
        lose_link=settings.lose_link,
    )


def _connect_leases(
    keeper: LeaseKeeper,
    due: DueLoop,
    relay: Relay,
    taking: TakeOver,
    repair: TailRepair,
    settings: DutySettings,
) -> None:
    """Has the lease loop notify the duties of new shards, lost writes and new epochs."""

    def look_again() -> None:
        due.look_again()
        relay.look_again()

    keeper.on_duties = look_again
    keeper.empty_set = taking.empty_own
    keeper.is_quiet = repair.is_quiet
    keeper.on_loss = lambda shard, epoch: repair.find_loss(shard, epoch, "lease")
    keeper.on_epoch = settings.note_epoch or repair.note_epoch
