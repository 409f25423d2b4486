"""A wish to stop: stored for the task, and for all below it where that is wished, before any agent is told (CMD-9).

The wish for a task is stored first, so nothing new begins below it (GR-11); then what stands below is read, and stopped
in the same way, level by level. The append of the first wish owes the rest as a due row (I9): the caller waits for the
first :data:`MOST_AT_ONCE` tasks, the others follow at once in the background, or by that row where the process ends.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from passerelle.a2a_mapping.rpc import Method
from passerelle.core.batch import DueChange, EntityKind, EntityRef
from passerelle.core.commands import CancelAccepted
from passerelle.core.errors import NotCancelable, PasserelleError, WriteConflict
from passerelle.core.job.machine import StopJob
from passerelle.core.payloads.task import TaskCancelRequested
from passerelle.core.task import machine as tasks
from passerelle.core.task.commands import RequestCancel
from passerelle.core.task.record import TaskRecord
from passerelle.core.task.status import ENDED, Status
from passerelle.delegation.jobs.parents import list_live, stop_job
from passerelle.runtime.common.calls import require_operation
from passerelle.runtime.records.family import list_below
from passerelle.runtime.records.ownership import Owned
from passerelle.runtime.records.writes import AppendOptions

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from passerelle.control.closure import Finishing
    from passerelle.core.commands import CancelTask
    from passerelle.core.decision import Decision
    from passerelle.core.ids import Shard
    from passerelle.core.ports.due import DueRow
    from passerelle.core.principal import Principal
    from passerelle.delegation.runs.dispatch import Dispatch
    from passerelle.runtime.records.ownership import Ownership
    from passerelle.runtime.records.writes import Writes

GRACE_MS: Final = 10_000
SUBTREE: Final = "subtree"
"""Kind of the due row of a task whose subtree is to stop."""
MOST_AT_ONCE: Final = 256
"""Tasks below one that a caller, or one handling of the due row, waits for."""
_TRIES: Final = 3
_TOLD_AT_ONCE: Final = 16
_OVER: Final = ENDED | {Status.CANCELLING}


@dataclass(frozen=True, slots=True)
class Cancelling:
    """Cancels tasks."""

    writes: Writes
    ownership: Ownership
    dispatch: Dispatch
    finishing: Finishing

    async def cancel(self, principal: Principal, command: CancelTask) -> CancelAccepted:
        """Stores the wish, and tells the agents.

        Raises:
            NotFound: no such task of the caller, nor one that it operates.
            NotCancelable: it has ended.
            Forbidden: the caller may not cancel one of those that the wish reaches; nothing is written.
        """
        # Over A2A a task is cancelled that callers see; its owner can cancel one before that as well.
        hidden = command.agent is None
        owned = await self.ownership.find_operated(
            principal, command.task, command.agent, hidden=hidden
        )
        if owned.record.status in ENDED:
            status = owned.record.status
            raise NotCancelable(f"the task has ended: {status}", status=status)
        requested = TaskCancelRequested(
            actor=principal.id,
            source="user",
            propagation=command.propagation,
            reason=command.reason,
        )
        if command.propagation == SUBTREE:
            record = owned.record
            reader = principal if record.owner == principal.key else None
            for below in await list_below(self.writes, record.owner, record, reader):
                if below.record.status not in ENDED:
                    require_operation(principal, below.record.kind, Method.CANCEL_TASK)
        await self.stop(principal, owned, requested)
        if command.propagation == SUBTREE and not await self._stop_below(owned.ref, requested):
            self.dispatch.detach(self._stop_rest(owned.ref, requested))
        return CancelAccepted()

    async def stop(
        self, principal: Principal, owned: Owned, requested: TaskCancelRequested
    ) -> None:
        """Stores the wish for one task, and then tells the agent that works on it."""
        require_operation(principal, owned.record.kind, Method.CANCEL_TASK)
        if await self._want(owned, requested, owes_rest=requested.propagation == SUBTREE):
            await self.dispatch.cancel(owned.ref.id)

    async def on_due(
        self, shard: Shard, row: DueRow, drop: Callable[[Shard, DueRow], Awaitable[bool]]
    ) -> None:
        """``subtree:<task>``: what stood below the task and was not reached yet; the row goes when nothing is left."""
        ref = EntityRef(EntityKind.TASK, row.entity)
        record = (await self.writes.load([ref]))[ref].record
        if isinstance(record, TaskRecord) and record.cancel_requested_by is not None:
            source = record.cancel_source or "user"
            requested = TaskCancelRequested(record.cancel_requested_by, source, SUBTREE)
            if not await self._stop_below(ref, requested):
                return  # the row comes again
        await drop(shard, row)

    async def _stop_rest(self, top: EntityRef, requested: TaskCancelRequested) -> None:
        """What the caller does not wait for; where it fails, the due row comes."""
        with suppress(PasserelleError):
            while not await self._stop_below(top, requested):
                pass

    async def _stop_below(self, top: EntityRef, requested: TaskCancelRequested) -> bool:
        """Stops up to :data:`MOST_AT_ONCE` jobs and open tasks below one; whether all of them are reached.

        They are read after the wish above them is stored, so what was created before that is among them.

        Raises:
            Conflict: one of them is changed by others again and again.
        """
        left = MOST_AT_ONCE
        while True:
            record = (await self.writes.load([top]))[top].record
            if not isinstance(record, TaskRecord):
                return True
            below = await list_below(self.writes, record.owner, record)
            wanted = [one for one in below if one.record.status not in _OVER]
            jobs = await list_live(self.writes, [record, *(one.record for one in below)])
            if not (wanted or jobs) or not left:
                return not (wanted or jobs)
            for job in jobs[:left]:
                await stop_job(self.writes, job, _make_stop(requested))
            left -= len(jobs[:left])
            await self._tell(
                [one.ref.id for one in wanted[:left] if await self._reach(one, requested)]
            )
            left -= len(wanted[:left])

    async def _reach(self, owned: Owned, requested: TaskCancelRequested) -> bool:
        """Stores the wish for a task as it stands now; whether an agent is to be told."""
        for _ in range(_TRIES):
            try:
                return await self._want(owned, requested)
            except NotCancelable:
                return False
            except WriteConflict:  # it was started meanwhile
                held = (await self.writes.load([owned.ref]))[owned.ref]
                if not isinstance(held.record, TaskRecord) or held.record.status in _OVER:
                    return False
                owned = Owned(owned.ref, held, held.record)
        raise WriteConflict("a task below is changed by others again and again", task=owned.ref.id)

    async def _tell(self, told: list[str]) -> None:
        """Tells the agents that work on some tasks, a few at a time: one that is slow keeps no other waiting."""
        turns = asyncio.Semaphore(_TOLD_AT_ONCE)

        async def tell(task_id: str) -> None:
            async with turns:
                await self.dispatch.cancel(task_id)

        outcomes = await asyncio.gather(*map(tell, told), return_exceptions=True)
        for outcome in outcomes:
            if outcome is not None:
                raise outcome

    async def _want(
        self, owned: Owned, requested: TaskCancelRequested, *, owes_rest: bool = False
    ) -> bool:
        """Stores the wish, and the end where nobody works on the task; whether an agent is to be told."""
        after_ms = self.writes.clock.now_ms() + GRACE_MS
        owed = (DueChange(f"{SUBTREE}:{owned.ref.id}", after_ms),) if owes_rest else ()
        if owned.record.run is None or requested.propagation == "none":
            await self.finishing.stop(owned, requested, owed)
            return False

        def body(decision: Decision) -> AppendOptions:
            now = decision.state(owned.ref)
            if isinstance(now, TaskRecord):
                decision.add(tasks.decide(now, RequestCancel(requested)))
            if not decision.events:
                if owed:  # the wish stands, for this task alone perhaps: that the rest is owed is what is written
                    decision.set_field(owned.ref, SUBTREE, requested.actor.encode())
                return AppendOptions(due=owed)
            at_ms = decision.now_ms + GRACE_MS
            return AppendOptions(due=(DueChange(f"cancel:{owned.ref.id}", at_ms), *owed))

        await self.writes.decide(owned.record.session_id, [owned.ref], body)
        return True


def _make_stop(requested: TaskCancelRequested) -> StopJob:
    """The same wish, for a job."""
    source: Final = "user" if requested.source == "user" else "runtime"
    return StopJob(requested.actor, requested.reason or "a task above it is cancelled", source)
