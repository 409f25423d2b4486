"""Handlers of due rows of tasks and questions: limits, expiries, pending answers and cancels (I9).

The due loop claims the row, the driver of the run acts on it. If the driver is on another instance, or there is none,
a limit ends the task all the same and a cancel is sent to the peer. An answer waits: its driver is notified, or the
run is taken over, and the row comes due again. A row without anything left to do is dropped.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from passerelle.core.approval.commands import Escalate, FailReturn
from passerelle.core.approval.record import ActionRecord
from passerelle.core.batch import EntityKind, EntityRef, IdempotencyRow
from passerelle.core.errors import UnsupportedOperation
from passerelle.core.task import machine as tasks
from passerelle.core.task.record import TaskRecord
from passerelle.core.task.status import ENDED, UNDRIVEN
from passerelle.delegation.runs.delivery import is_kept_back
from passerelle.delegation.runs.finish import time_out
from passerelle.delegation.runs.limits import find_end
from passerelle.delegation.runs.results import name_task
from passerelle.delegation.runs.run import RunMovedError
from passerelle.permission_bridge.hooks.hooks import NO_HOOK_RESULTS
from passerelle.runtime.records.blob_overflow import BlobOverflow, write_notes
from passerelle.runtime.records.due_rows import move_row
from passerelle.runtime.records.writes import AppendOptions

if TYPE_CHECKING:
    from passerelle.core.decision import Decision
    from passerelle.core.ids import Shard
    from passerelle.core.ports.due import DropRow, DueRow
    from passerelle.core.wire.json import JsonObject
    from passerelle.delegation.runs.dispatch import Dispatch
    from passerelle.delegation.runs.inputs import Inputs
    from passerelle.delegation.runs.limits import TimeLimit
    from passerelle.delegation.runs.retries import Retries
    from passerelle.permission_bridge.answers.actions import Actions
    from passerelle.permission_bridge.answers.grants import GrantService
    from passerelle.runtime.records.writes import Writes

STOP_ROW: Final = "stop"
"""The kind of the due row that runs ``on_stop`` hooks."""
_STOP_KEPT_MS: Final = 3_600_000
_THROTTLED_MS: Final = 1_000
"""Delay until the idle limit of a run is checked again whose stream is not read."""


@dataclass(slots=True)
class Deadlines:
    """Handlers of due rows by kind; ``drop`` removes a row that is not needed any more."""

    writes: Writes
    actions: Actions
    dispatch: Dispatch
    inputs: Inputs
    retries: Retries
    granting: GrantService
    drop: DropRow

    async def on_timeout(self, shard: Shard, row: DueRow, now_ms: int) -> None:
        """``timeout:<task>``: the total limit of a run."""
        await self._judge_limit(shard, row, "total", now_ms)

    async def on_idle(self, shard: Shard, row: DueRow, now_ms: int) -> None:
        """``idle:<task>``: the limit of a run without an update of its agent."""
        await self._judge_limit(shard, row, "idle", now_ms)

    async def _judge_limit(self, shard: Shard, row: DueRow, limit: TimeLimit, now_ms: int) -> None:
        record = await self.dispatch.read_task(row.entity)
        end_ms = find_end(record, limit, now_ms) if record else None
        if record is None or record.status in UNDRIVEN or end_ms is None:
            await self.drop(shard, row)
        elif end_ms > now_ms:
            await move_row(self.writes, record.session_id, row, end_ms)
        elif limit == "idle" and self._is_throttled(row.entity):
            # This gateway has paused reading, so the silence proves nothing.
            await move_row(self.writes, record.session_id, row, now_ms + _THROTTLED_MS)
        else:
            await self._time_out(row, limit)

    def _is_throttled(self, task_id: str) -> bool:
        driver = self.dispatch.find(task_id)
        return driver is not None and driver.is_throttled

    async def _time_out(self, row: DueRow, limit: TimeLimit) -> None:
        driver = self.dispatch.find(row.entity)
        run = driver.run if driver is not None else await self.dispatch.hold(row.entity)
        remote = run.record.run.remote_task_id if run.record.run else None
        peer = run.context.peer
        try:
            await time_out(run, limit, row)
        except RunMovedError:
            return  # another instance has the run; the row comes due again
        # First of all: the driver of a next run may start in a moment.
        self.dispatch.runs.drop(row.entity)
        if remote is not None:
            await self.dispatch.stop_peer(peer, remote)

    async def on_cancel(self, shard: Shard, row: DueRow, _now_ms: int) -> None:
        """``cancel:<task>``: a requested cancel that is not confirmed yet."""
        if await self._is_over(row.entity):
            await self.drop(shard, row)
            return
        await self.dispatch.cancel(row.entity)

    async def on_retry(self, shard: Shard, row: DueRow, _now_ms: int) -> None:
        """``retry:<task>``: a retry is due."""
        if not await self.retries.begin(row):
            await self.drop(shard, row)

    async def on_input(self, shard: Shard, row: DueRow, _now_ms: int) -> None:
        """``input:<task>:<turn>``: a further message that is not known to have arrived."""
        await self.inputs.look(shard, row, self.drop)

    async def on_send(self, shard: Shard, row: DueRow, _now_ms: int) -> None:
        """``send:<task>``: the first message of a run, which the peer did not accept earlier."""
        record = await self.dispatch.read_task(row.entity)
        if record is None or record.status in ENDED or not is_kept_back(record):
            await self.drop(shard, row)
            return
        # The driver knows the time as well; if it is on another instance, that one sends.
        self.dispatch.wake(row.entity)

    async def on_expire(self, shard: Shard, row: DueRow, now_ms: int) -> None:
        """``expire:<action>``: a question has expired; a timeout never allows."""
        action = await self.writes.read(ActionRecord, row.entity)
        if action is None or not action.is_open:
            await self.drop(shard, row)
            return
        written = await self.actions.expire(row.entity, now_ms, row)
        if written is not None:
            self.dispatch.wake(action.scope.task_id or "", row.entity)

    async def on_stop(self, shard: Shard, row: DueRow, _now_ms: int) -> None:
        """``stop:<task>``: hooks are notified of an end."""
        if not await _run_stop_hooks(self.dispatch, EntityRef(EntityKind.TASK, row.entity), row):
            await self.drop(shard, row)

    async def on_mint(self, shard: Shard, row: DueRow, _now_ms: int) -> None:
        """``mint:<action>``: a grant that an "always" answer creates."""
        action = await self.writes.read(ActionRecord, row.entity)
        if action is not None:
            await self.granting.mint(action)
        await self.drop(shard, row)

    async def on_escalate(self, shard: Shard, row: DueRow, _now_ms: int) -> None:
        """``escalate:<action>:<step>``: there is no decision yet, so more approvers are added."""
        step = row.member.rpartition(":")[2]
        action = await self.writes.read(ActionRecord, row.entity)
        if action is None or not action.is_open or not step.isdecimal() or int(step) <= action.step:
            await self.drop(shard, row)
            return
        await self.actions.close(row.entity, Escalate(int(step)), row)

    async def on_return(self, shard: Shard, row: DueRow, _now_ms: int) -> None:
        """``return:<action>``: an answer that a peer waits for, or waited for until its task ended."""
        action = await self.writes.read(ActionRecord, row.entity)
        is_pending = action is not None and action.return_state in {"owed", "returning"}
        if action is None or not is_pending:
            await self.drop(shard, row)
            return
        task = action.scope.task_id or ""
        # A local driver settles it, also where it has just ended the task.
        if not self.dispatch.wake(task, row.entity) and await self._is_over(task):
            with suppress(
                UnsupportedOperation
            ):  # it was settled meanwhile; the row comes back and is dropped
                await self.actions.close(row.entity, FailReturn("peer_terminal"), row)

    async def _is_over(self, task_id: str) -> bool:
        record = await self.dispatch.read_task(task_id)
        return record is None or record.status in ENDED


async def _run_stop_hooks(dispatch: Dispatch, task: EntityRef, row: DueRow) -> bool:
    """Notifies hooks of the end of a task, and settles the row; False where there is nothing to do."""
    record = (await dispatch.writes.load_one(task)).record
    consulting = dispatch.consulting
    rules = consulting.find_rules()
    if not isinstance(record, TaskRecord) or not rules.hooks_at("on_stop"):
        return False
    given: JsonObject = {
        **name_task(record),
        "status": record.status,
        "reason": record.status_reason,
        "peer": record.peer,
    }
    results = await consulting.hooks.evaluate("on_stop", rules, given)
    if results is NO_HOOK_RESULTS:
        return False
    spill = BlobOverflow()
    facts = write_notes(spill, tasks.scope_of(record), results.notes)
    for blob in spill.blobs:
        await dispatch.blobs.put(task.shard, blob)

    def body(decision: Decision) -> AppendOptions:
        decision.add(facts)
        key = f"{row.member}:{record.exposure}"
        return AppendOptions(claim=row, idem=IdempotencyRow(key, key, b"", _STOP_KEPT_MS))

    await dispatch.writes.decide(record.session_id, [], body)
    return True
