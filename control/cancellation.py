"""Cancels tasks: the request is stored for the task, optionally for its subtree, before any agent is notified (CMD-9).

The request is stored on the task first, so that nothing new starts below it (GR-11); then the tasks below are read, and
cancelled in the same way, level by level. The first append also sets a due row for the rest (I9): the caller waits for
the first :data:`MOST_AT_ONCE` tasks, the others follow at once in the background, or by that row if the process dies.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from passerelle.a2a_mapping.rpc import Method
from passerelle.core.batch import DueChange, EntityKind, EntityRef
from passerelle.core.commands import CancelAccepted
from passerelle.core.errors import NotCancelable, PasserelleError, WriteConflict
from passerelle.core.frozen import frozen
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
    from passerelle.control.closure import Finishing
    from passerelle.core.commands import CancelTask
    from passerelle.core.decision import Decision
    from passerelle.core.ids import Shard
    from passerelle.core.ports.due import DropRow, DueRow
    from passerelle.core.principal import Principal
    from passerelle.delegation.runs.dispatch import Dispatch
    from passerelle.runtime.records.ownership import Ownership
    from passerelle.runtime.records.writes import Writes

GRACE_MS: Final = 10_000
SUBTREE: Final = "subtree"
"""Kind of the due row of a task whose subtree is being cancelled."""
MOST_AT_ONCE: Final = 256
"""Tasks of a subtree that a caller, or one handling of the due row, waits for."""
_TRIES: Final = 3
_NOTIFIED_AT_ONCE: Final = 16
_OVER: Final = ENDED | {Status.CANCELLING}


@frozen
class Cancelling:
    """Cancels tasks."""

    writes: Writes
    ownership: Ownership
    dispatch: Dispatch
    finishing: Finishing

    async def cancel(self, principal: Principal, command: CancelTask) -> CancelAccepted:
        """Stores the cancel request, and notifies the agents.

        Raises:
            NotFound: no such task of the caller, and none that it operates.
            NotCancelable: it has ended.
            Forbidden: the caller may not cancel one of the tasks in the subtree; nothing is written.
        """
        # Over A2A only visible tasks can be cancelled; the owner can cancel a hidden one as well.
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
        """Stores the request for one task, and then notifies its agent."""
        require_operation(principal, owned.record.kind, Method.CANCEL_TASK)
        if await self._request(owned, requested, has_rest=requested.propagation == SUBTREE):
            await self.dispatch.cancel(owned.ref.id)

    async def on_due(self, shard: Shard, row: DueRow, drop: DropRow) -> None:
        """``subtree:<task>``: cancels the rest of a subtree; the row is dropped when none is left."""
        ref = EntityRef(EntityKind.TASK, row.entity)
        record = (await self.writes.load_one(ref)).record
        if isinstance(record, TaskRecord) and record.cancel_requested_by is not None:
            source = record.cancel_source or "user"
            requested = TaskCancelRequested(record.cancel_requested_by, source, SUBTREE)
            if not await self._stop_below(ref, requested):
                return  # the row comes due again
        await drop(shard, row)

    async def _stop_rest(self, top: EntityRef, requested: TaskCancelRequested) -> None:
        """Cancels what the caller does not wait for; if it fails, the due row continues."""
        with suppress(PasserelleError):
            while not await self._stop_below(top, requested):
                pass

    async def _stop_below(self, top: EntityRef, requested: TaskCancelRequested) -> bool:
        """Cancels up to :data:`MOST_AT_ONCE` jobs and open tasks below one; returns whether all are reached.

        They are read after the request above them is stored, so tasks created before that are among them.

        Raises:
            Conflict: one of them is changed concurrently again and again.
        """
        left = MOST_AT_ONCE
        while True:
            record = (await self.writes.load_one(top)).record
            if not isinstance(record, TaskRecord):
                return True
            below = await list_below(self.writes, record.owner, record)
            wanted = [one for one in below if one.record.status not in _OVER]
            jobs = await list_live(self.writes, [record, *(one.record for one in below)])
            if not (wanted or jobs) or not left:
                return not (wanted or jobs)
            for job in jobs[:left]:
                await stop_job(self.writes, job, _make_job_stop(requested))
            left -= len(jobs[:left])
            await self._notify_agents(
                [one.ref.id for one in wanted[:left] if await self._try_request(one, requested)]
            )
            left -= len(wanted[:left])

    async def _try_request(self, owned: Owned, requested: TaskCancelRequested) -> bool:
        """Stores the request for a task in its current state; returns whether an agent must be notified."""
        for _ in range(_TRIES):
            try:
                return await self._request(owned, requested)
            except NotCancelable:
                return False
            except WriteConflict:  # it was started meanwhile
                held = await self.writes.load_one(owned.ref)
                if not isinstance(held.record, TaskRecord) or held.record.status in _OVER:
                    return False
                owned = Owned(owned.ref, held, held.record)
        raise WriteConflict("a task below is changed concurrently too often", task=owned.ref.id)

    async def _notify_agents(self, task_ids: list[str]) -> None:
        """Notifies the agents of some tasks, a few at a time: a slow agent delays no other."""
        turns = asyncio.Semaphore(_NOTIFIED_AT_ONCE)

        async def notify(task_id: str) -> None:
            async with turns:
                await self.dispatch.cancel(task_id)

        outcomes = await asyncio.gather(*map(notify, task_ids), return_exceptions=True)
        for outcome in outcomes:
            if outcome is not None:
                raise outcome

    async def _request(
        self, owned: Owned, requested: TaskCancelRequested, *, has_rest: bool = False
    ) -> bool:
        """Stores the request, and the end if no agent works on the task; returns whether an agent must be notified."""
        after_ms = self.writes.clock.now_ms() + GRACE_MS
        owed = (DueChange(f"{SUBTREE}:{owned.ref.id}", after_ms),) if has_rest else ()
        if owned.record.run is None or requested.propagation == "none":
            await self.finishing.stop(owned, requested, owed)
            return False

        def body(decision: Decision) -> AppendOptions:
            now = decision.state(owned.ref)
            if isinstance(now, TaskRecord):
                decision.add(tasks.decide(now, RequestCancel(requested)))
            if not decision.events:
                if owed:  # the request is stored, perhaps for this task alone: only the row is new
                    decision.set_field(owned.ref, SUBTREE, requested.actor.encode())
                return AppendOptions(due=owed)
            at_ms = decision.now_ms + GRACE_MS
            return AppendOptions(due=(DueChange(f"cancel:{owned.ref.id}", at_ms), *owed))

        await self.writes.decide(owned.record.session_id, [owned.ref], body)
        return True


def _make_job_stop(requested: TaskCancelRequested) -> StopJob:
    """The same request, for a job."""
    source: Final = "user" if requested.source == "user" else "runtime"
    return StopJob(requested.actor, requested.reason or "a task above it is cancelled", source)
