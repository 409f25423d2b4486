"""Rolls a thread back to the end of a turn, in one append: entirely or not at all (EXT-11, PRS-5).

Tasks after the boundary are marked and stay stored. No task of the thread may be running: its later events would be
stored after the boundary and belong before it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from passerelle.control.turn_histories import BOUNDARY, ThreadMovedError
from passerelle.core.batch import EntityKind, EntityRef
from passerelle.core.errors import (
    InvalidInput,
    NotFound,
    UnsupportedOperation,
)
from passerelle.core.frozen import frozen
from passerelle.core.ids import parse_facade
from passerelle.core.payloads.history import RollbackStarted
from passerelle.core.read_models.task import name_task
from passerelle.core.session import thread as threads
from passerelle.core.session.boundaries import RollBack
from passerelle.core.session.requests import ThreadRolledBack
from passerelle.core.session.thread import ThreadRecord
from passerelle.core.session.turn_history import FIELD, check_rollback
from passerelle.core.task import machine as tasks
from passerelle.core.task.commands import LeaveBehind
from passerelle.core.task.record import TaskRecord
from passerelle.core.task.status import ENDED
from passerelle.core.wire.codec import from_bytes, to_bytes
from passerelle.core.wire.record import change
from passerelle.runtime.records.idempotency import make_once
from passerelle.runtime.records.writes import AppendOptions

if TYPE_CHECKING:
    from collections.abc import Iterable

    from passerelle.control.turn_histories import FoundThread, TurnHistories
    from passerelle.core.decision import Decision
    from passerelle.core.principal import Principal
    from passerelle.core.session.requests import RollBackThread
    from passerelle.core.session.turn_history import TurnBoundary
    from passerelle.runtime.records.idempotency import Once


@frozen
class _Plan:
    """A planned rollback of a thread as it was read."""

    thread: FoundThread
    boundary: TurnBoundary
    command: RollBack
    names: tuple[str, ...]
    """The tasks after the boundary, by the ids that callers know."""
    refs: tuple[EntityRef, ...]

    def show(self) -> ThreadRolledBack:
        """The answer to the caller."""
        boundary, started = self.boundary, self.command.started
        happened = bool(boundary.behind)
        return ThreadRolledBack(
            thread_id=self.thread.record.thread_id,
            outcome="rolled_back" if happened else "no_op",
            to_turn=boundary.to_turn,
            covers=boundary.covers,
            boundary_id=started.boundary_id if happened else None,
            turns=boundary.turns,
            tasks=self.names,
            renewed=self.command.renewed,
        )


@frozen
class RollingBack:
    """Rolls threads back."""

    histories: TurnHistories

    async def roll_back(
        self, principal: Principal, command: RollBackThread, idem: str | None
    ) -> ThreadRolledBack:
        """Rolls back to the end of a turn, once per idempotency key; writes nothing if that is the last turn.

        Raises:
            NotFound: no such thread of the caller.
            InvalidInput: the turn is not in the thread, was rolled back, or its end is no boundary.
            UnsupportedOperation: a task of the thread is open, a task after the turn belongs to another principal, or
            facts
                are no longer kept.
            IdempotencyConflict: the key was used for another request.
        """
        writes, once = self.histories.writes, make_once(principal, command, idem)
        thread = await self.histories.find(principal, command.thread_id)
        first = await once.find(self.histories.writes.log, thread.ref.shard)
        if first is not None:
            return _read_first(first)
        boundary_id = writes.ids.mint(BOUNDARY, thread.ref.shard)

        async def go_back(thread: FoundThread) -> ThreadRolledBack:
            return await self._append(
                await self._plan(principal, command, thread, boundary_id), once
            )

        return await self.histories.change(principal, thread, go_back)

    async def _plan(
        self,
        principal: Principal,
        command: RollBackThread,
        thread: FoundThread,
        boundary_id: str,
    ) -> _Plan:
        record = thread.record
        turns, last = await self.histories.read_turns(record)
        boundary = turns.find(command.to_turn)
        check_rollback(boundary)
        started = RollbackStarted(
            boundary_id=boundary_id,
            to_turn=command.to_turn,
            turns=boundary.turns,
            actor=principal.id,
            reason=command.reason,
            tasks=boundary.tasks,
        )
        without = turns.list_gone() | boundary.left
        restored = await self.histories.restore(record, without, last)
        peers = turns.list_peers(boundary.tasks)
        renewed = tuple(sorted(peer for peer in record.remotes if peer in peers))
        going_back = RollBack(started, boundary.covers, last, restored, renewed)
        refs = tuple(EntityRef(EntityKind.TASK, one) for one in boundary.tasks)
        await self._check_rest(record)
        held = await self.histories.writes.load(refs)
        names = tuple(_name(held[ref].record, principal) for ref in refs)
        return _Plan(thread, boundary, going_back, names, refs)

    async def _check_rest(self, thread: ThreadRecord) -> None:
        """Checks that no started task of the thread is open; a task that was only created is no turn yet."""
        log, writes = self.histories.writes.log, self.histories.writes
        named = (parse_facade(name) for name in await log.read_open(thread.session_id))
        tasks = await writes.read_all(TaskRecord, (one[0] for one in named if one is not None))
        _check_rest(one for one in tasks.values() if _is_begun(one, thread))

    async def _append(self, plan: _Plan, once: Once) -> ThreadRolledBack:
        thread, shown = plan.thread, plan.show()

        def body(decision: Decision) -> AppendOptions:
            if decision.version(thread.ref) != thread.version:
                raise ThreadMovedError
            if plan.boundary.behind:
                _decide(decision, plan)
            return AppendOptions(idem=once.remember(to_bytes(shown).decode()))

        refs = [thread.ref, *plan.refs]
        written = await self.histories.writes.change(thread.record.session_id, refs, body)
        if written.repeated is not None and written.repeated != to_bytes(shown):
            return _read_first(written.repeated)
        return shown


def _decide(decision: Decision, plan: _Plan) -> None:
    state = decision.state(plan.thread.ref)
    if not isinstance(state, ThreadRecord):
        raise NotFound("thread", plan.thread.ref.id)
    # It belongs to no run, and so to no run's trace.
    decision.belong(None)
    started, *others = threads.decide(state, plan.command)
    decision.add([started])
    behind = [decision.state(ref) for ref in plan.refs]
    _check_rest(behind)
    for task in behind:
        if isinstance(task, TaskRecord):
            decision.add(tasks.decide(task, LeaveBehind(plan.command.started.boundary_id)))
    decision.add(others)


def _is_begun(record: TaskRecord, thread: ThreadRecord) -> bool:
    begun = record.attempts or record.open_turns or record.turn_id is not None
    return record.thread_id == thread.thread_id and bool(begun)


def _check_rest(records: Iterable[object]) -> None:
    still = [one for one in records if isinstance(one, TaskRecord) and one.status not in ENDED]
    if still:
        named = " ".join(name_task(one) for one in still[:8])
        message = f"{FIELD}: tasks of the thread are open: {named}"
        raise UnsupportedOperation(message, why="open_task", field=FIELD, tasks=named)


def _name(record: object, principal: Principal) -> str:
    if not isinstance(record, TaskRecord):
        raise InvalidInput(FIELD, "the record of a task after it is no longer kept")
    if record.owner != principal.key:
        message = f"{FIELD}: a task after the turn belongs to another owner"
        raise UnsupportedOperation(message, why="given_away", field=FIELD)
    return name_task(record)


def _read_first(stored: bytes) -> ThreadRolledBack:
    return change(from_bytes(ThreadRolledBack, stored), repeated=True)
