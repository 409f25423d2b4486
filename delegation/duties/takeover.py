"""Takes over the runs of a dead instance: moves them to this one, one append each, then adopts them.

Two kinds of rows. ``own:<instance>`` comes due when a lease has expired: its set is marked gone, and each run in it is
moved: out of the old set, into ours, with the field ``own`` set to this instance, under the fence of the old
incarnation. So of two takeovers one succeeds, and the old driver can write nothing any more. The run is adopted at
once, before the rest of the set: its caller waits. The append that moves it also sets ``adopt:<task>`` for a little
later: after a crash or a failure at any point there is a row, and so a retry.

Thousands of runs share one queue over all shards; each is finished in its turn, none is begun and left. When the row
of a set comes back meanwhile, it finds the runs that are still queued.

Our own set can be marked gone as well (a frozen process wakes up, and the instance that marked the set has died).
Nothing can enter a new set before the old one is empty, so its runs only leave it, and their ``adopt`` rows have them
adopted by the instance with the duty.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, TypeAlias

from passerelle.core.batch import (
    DueChange,
    EntityKind,
    EntityRef,
    Fence,
    Incarnation,
    RunMove,
)
from passerelle.core.chunks import in_chunks
from passerelle.core.errors import PasserelleError, StoreUnavailable
from passerelle.core.events import Fact
from passerelle.core.ids import Shard
from passerelle.core.payloads.run import RunStatus
from passerelle.core.ports.due import DueRow
from passerelle.core.ports.leases import Alive
from passerelle.core.task import machine as tasks
from passerelle.core.task.record import TaskRecord
from passerelle.core.task.status import ENDED
from passerelle.protocol.concurrency import cancel_all, join_all
from passerelle.runtime.records.task_fields import OWNER, read_driver
from passerelle.runtime.records.writes import AppendOptions, Written

if TYPE_CHECKING:
    from structlog.typing import FilteringBoundLogger

    from passerelle.core.decision import Decision
    from passerelle.core.machine import Record
    from passerelle.core.ports.leases import Leases
    from passerelle.delegation.duties.factless_writes import FactlessWrites
    from passerelle.delegation.duties.leases import LeaseKeeper
    from passerelle.runtime.records.writes import Writes

Adopt: TypeAlias = Callable[[EntityRef], Awaitable[None]]
"""Re-attaches to the run of a task that this instance owns now; a second call for the task does nothing."""

LoseLink: TypeAlias = Callable[[str, str], Awaitable[None]]

ADOPT: Final = "adopt"
_LOOK_AGAIN_MS: Final = 1_000
_TRY_AGAIN_MS: Final = 1_500
"""After this time a moved run that was not adopted at once is tried again."""
_AT_ONCE: Final = 32
"""Runs that are moved and adopted at the same time; the others are queued."""


@dataclass(slots=True)
class TakeOver:
    """Handles the rows ``own:<instance>`` and ``adopt:<task>``. ``wake(shard)`` has the due loop visit at once."""

    leases: Leases
    writes: Writes
    factless_writes: FactlessWrites
    keeper: LeaseKeeper
    adopt: Adopt
    log: FilteringBoundLogger
    wake: Callable[[Shard], None]
    try_again_ms: int = _TRY_AGAIN_MS
    lose_link: LoseLink | None = None
    """Called with each device link in the set of a dead instance, and that instance."""
    _queued: dict[str, asyncio.Task[None]] = field(default_factory=dict[str, "asyncio.Task[None]"])
    """By task, in order: runs that are being adopted or wait for it."""
    _places: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(_AT_ONCE))

    async def take_over(self, shard: Shard, row: DueRow, now_ms: int) -> None:
        """Empties the set of an instance whose lease has expired.

        Raises:
            StoreUnavailable: the row stays, and the rest is done by a retry.
        """
        instance = row.entity
        if instance != self.keeper.instance:
            self.keeper.drives(shard)
            await self._empty(shard, instance, keeps=True)
            return
        # The next extension moves the row on, or finds the lease lost and empties the set.
        again = DueChange(row.member, now_ms + _LOOK_AGAIN_MS)
        await self.factless_writes.write(shard, claim=row, due=(again,))

    async def empty_own(self, shard: Shard) -> None:
        """Removes the runs from our own set after it was marked gone; their ``adopt`` rows have them adopted.

        Raises:
            StoreUnavailable: the rest is done by a retry.
        """
        await self._empty(shard, self.keeper.instance, keeps=False)

    async def _empty(self, shard: Shard, instance: str, *, keeps: bool) -> None:
        found = await self.leases.take_over(shard, instance)
        if isinstance(found, Alive) or not (found.runs or found.channels):
            return
        old = Incarnation(instance, found.number)
        moves = [RunMove(run, task, old, enters=False) for run, task in found.runs]
        queued = [self._enqueue(shard, move, keeps=keeps) for move in moves]
        await join_all(map(asyncio.shield, queued))
        await self._lose_links(found.channels, instance)
        await self.leases.take_over(shard, instance)
        self.log.info("lease.taken_over", shard=shard.tag, instance=instance, runs=len(moves))
        self.wake(shard)

    async def _lose_links(self, channels: tuple[str, ...], instance: str) -> None:
        if self.lose_link is None:
            return
        for links in in_chunks(channels, _AT_ONCE):
            await join_all(self.lose_link(channel, instance) for channel in links)

    def _enqueue(self, shard: Shard, leaving: RunMove, *, keeps: bool) -> asyncio.Task[None]:
        """Queues a run, unless it is queued already; a cancelled caller does not remove it."""
        task = self._queued.get(leaving.task)
        if task is None:
            task = asyncio.create_task(self._move_and_adopt(shard, leaving, keeps=keeps))
            self._queued[leaving.task] = task
            task.add_done_callback(lambda done: self._dequeue(leaving.task, done))
        return task

    def _dequeue(self, task_id: str, done: asyncio.Task[None]) -> None:
        self._queued.pop(task_id, None)
        if not done.cancelled():
            done.exception()  # a caller that still waits has raised it; else the row of the set comes back

    async def _move_and_adopt(self, shard: Shard, leaving: RunMove, *, keeps: bool) -> None:
        """Moves a run and has it driven here at once; where that fails, or ``keeps`` is false, its row is left."""
        async with self._places:
            heir = self.keeper.drives(shard) if keeps else None
            due_ms = self.writes.read_ms(shard) + (self.try_again_ms if keeps else 0)
            if not await self._move(leaving, heir, due_ms) or heir is None:
                return
            task = EntityRef(EntityKind.TASK, leaving.task)
            try:
                await self.adopt(task)
            except PasserelleError as error:
                self.log.warning("run.not_adopted", task=task.id, reason=str(error))
                return
            except Exception:
                # The fault of one run must not block the others.
                self.log.exception("run.not_adopted", task=task.id)
                return
            await self.factless_writes.drop_row(shard, DueRow(f"{ADOPT}:{task.id}", str(due_ms)))

    async def close(self) -> None:
        """Cancels the queued runs; their rows stay."""
        await cancel_all(self._queued.values())

    async def take_up(self, shard: Shard, row: DueRow, _now_ms: int) -> None:
        """Drives a moved run here, whichever instance moved it.

        Raises:
            RemoteError: the row stays: no lease here, or the store or the agent is unreachable.
        """
        if row.entity in self._queued:
            return  # it is being adopted; if that fails, the row comes back
        task = EntityRef(EntityKind.TASK, row.entity)
        held = await self.writes.load_one(task)
        record = held.record
        if not isinstance(record, TaskRecord) or record.status in ENDED:
            await self.factless_writes.drop_row(shard, row)
            return
        heir, driver = self.keeper.drives(shard), read_driver(held.fields)
        if driver != heir and not await self._claim(task, record, driver, heir):
            raise _moved_by_another()
        await self.adopt(task)
        await self.factless_writes.drop_row(shard, row)

    async def _move(self, leaving: RunMove, heir: Incarnation | None, due_ms: int) -> bool:
        """Moves a run out of the dead instance's set, and into ours; whether to adopt it, at ``due_ms``."""
        task = EntityRef(EntityKind.TASK, leaving.task)
        held = await self.writes.load([task])
        record = held[task].record
        if not isinstance(record, TaskRecord):
            self.log.error("run.without_task", task=task.id, run=leaving.run)
            await self.factless_writes.write(task.shard, runs=(leaving,))
            return False
        outcome = await self.writes.decide(
            record.session_id,
            [task],
            lambda decision: _hand_over(decision, task, leaving, heir, due_ms),
            held,
        )
        if isinstance(outcome, Written):
            self.log.info("run.taken_over", task=task.id, run=leaving.run, driver=str(heir))
            moved = outcome.held[task].record
            return isinstance(moved, TaskRecord) and moved.status not in ENDED
        if read_driver((await self.writes.load_one(task)).fields) == leaving.driver:
            # The fence of the dead instance still holds, so our own set refused the run.
            raise _moved_by_another()
        # Another instance drives the task by now: the entry in the old set is a leftover.
        await self.factless_writes.write(task.shard, runs=(leaving,))
        return False

    async def _claim(
        self, task: EntityRef, record: TaskRecord, driver: Incarnation | None, heir: Incarnation
    ) -> bool:
        """Makes a run ours that waits for adoption: without a driver, or moved by an instance that did not adopt it."""
        run = record.attempts[-1].run_id if record.attempts else task.id
        entering = RunMove(run, task.id, heir, enters=True)
        leaving = () if driver is None else (RunMove(run, task.id, driver, enters=False),)

        def body(decision: Decision) -> AppendOptions:
            decision.set_field(task, OWNER, str(heir).encode())
            decision.add(_list_takeover_facts(decision.state(task)))
            fence = None if driver is None else Fence(task.id, driver)
            return AppendOptions(fence=fence, runs=(*leaving, entering))

        return isinstance(await self.writes.decide(record.session_id, [task], body), Written)


def _hand_over(
    decision: Decision, task: EntityRef, leaving: RunMove, heir: Incarnation | None, due_ms: int
) -> AppendOptions:
    record = decision.state(task)
    fence = Fence(task.id, leaving.driver)
    if not isinstance(record, TaskRecord) or record.status in ENDED:
        decision.set_field(task, OWNER, None)
        return AppendOptions(fence=fence, runs=(leaving,))
    decision.set_field(task, OWNER, None if heir is None else str(heir).encode())
    owed = (DueChange(f"{ADOPT}:{task.id}", due_ms),)
    if heir is None:
        return AppendOptions(fence=fence, runs=(leaving,), due=owed)
    decision.add(_list_takeover_facts(record))
    entering = RunMove(leaving.run, task.id, heir, enters=True)
    return AppendOptions(fence=fence, runs=(leaving, entering), due=owed)


def _list_takeover_facts(record: Record | None) -> list[Fact]:
    """The fact that the live run is followed again; the peer's native status stays as it is.

    A run whose task id at the agent is unknown is not followed, so its delivery mechanism stays that of its send.
    """
    if not isinstance(record, TaskRecord) or record.status in ENDED or record.run is None:
        return []
    payload = (
        RunStatus(taken_over=True)
        if record.run.remote_task_id is None
        else RunStatus(delivery_mechanism="subscription", taken_over=True)
    )
    return [Fact(tasks.scope_of(record), payload)]


def _moved_by_another() -> StoreUnavailable:
    return StoreUnavailable("the run is being moved, or our lease is lost", "no")
