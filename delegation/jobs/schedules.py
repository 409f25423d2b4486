"""Drives schedules: ``schedule:<session>`` comes due, its ticks are judged, and runs begin as ordinary turns (AP-7).

It takes two appends. The first judges the due ticks and names the runs that follow. Then each run is sent as a turn
under an idempotency key made of the schedule and the number of the run, and the second append records its task. If
this instance dies in between, the row comes due again, and the stored turn is found under its key or, once that has
expired, after the fact that named the run. So a run begins once, and no tick is judged twice.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Final

from passerelle.core.batch import DueChange, EntityKind, EntityRef
from passerelle.core.commands import CancelTask, SubmitTurn
from passerelle.core.errors import (
    Draining,
    Limited,
    NotCancelable,
    NotFound,
    PasserelleError,
    StoreUnavailable,
    WriteConflict,
)
from passerelle.core.event_type import EventType
from passerelle.core.events import Fact, decode_event
from passerelle.core.facts import ErrorCategory, ErrorDetail, Scope
from passerelle.core.frozen import frozen
from passerelle.core.payloads.conversation import SessionUpdated, TurnSubmitted
from passerelle.core.ports.log import StreamKind, StreamRef
from passerelle.core.schedule import machine
from passerelle.core.session.machine import SessionRecord
from passerelle.core.task.record import TaskRecord
from passerelle.core.task.status import ENDED
from passerelle.runtime.records.due_rows import settle_row
from passerelle.runtime.records.writes import AppendOptions

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from passerelle.core.commands import TurnAccepted
    from passerelle.core.decision import Decision
    from passerelle.core.ids import Shard
    from passerelle.core.payloads.schedule import ScheduleChange, ScheduledRun
    from passerelle.core.ports.due import DropRow, DueRow
    from passerelle.core.principal import Principal
    from passerelle.core.schedule.machine import Calendar, ScheduleState
    from passerelle.runtime.records.writes import Writes

SCHEDULE: Final = "schedule"
"""The kind of the due row of a schedule."""
_AGAIN_MS: Final = 5_000
"""Delay until the row of a schedule comes back while a run is about to begin, in case this process dies first."""
_AT_ONCE: Final = 16
"""Runs that begin in one visit; while there are more, the row is due at once."""
_TRANSIENT: Final = (StoreUnavailable, Draining, WriteConflict, Limited)
"""Errors that say nothing about the run: its row comes back."""
_CANCELLED_BY: Final = "a later run of the schedule takes its place"


def name_row(session_id: str) -> str:
    """The due row of a schedule."""
    return f"{SCHEDULE}:{session_id}"


def name_run(session_id: str, number: int) -> str:
    """The idempotency key of a run, and the id of its message."""
    return f"{SCHEDULE}-{session_id}-{number}"


def list_change_facts(session_id: str, step: ScheduleChange) -> list[Fact]:
    """The fact of a change of the schedule."""
    return [Fact(Scope(session_id), SessionUpdated(schedule=step))]


@frozen
class ScheduleRunner:
    """Judges ticks and begins runs. ``submit`` and ``cancel`` are the functions for any caller's commands."""

    writes: Writes
    calendar: Calendar
    find_principal: Callable[[str, str], Principal | None]
    submit: Callable[[Principal, SubmitTurn, str], Awaitable[TurnAccepted]]
    cancel: Callable[[Principal, CancelTask], Awaitable[object]]

    async def on_due(
        self,
        shard: Shard,
        row: DueRow,
        now_ms: int,
        drop: DropRow,
    ) -> None:
        """``schedule:<session>``: a tick may be due, or a waiting run may begin.

        Raises:
            StoreUnavailable, Draining, WriteConflict, Limited: the row comes back.
        """
        ref = EntityRef(EntityKind.SESSION, row.entity)
        record = (await self.writes.load_one(ref)).record
        schedule = record.schedule if isinstance(record, SessionRecord) else None
        if not isinstance(record, SessionRecord) or schedule is None:
            await drop(shard, row)
            return
        busy = await self._is_busy(schedule)
        judged = await self._judge(ref, row, now_ms, busy=busy)
        for _ in range(_AT_ONCE):
            run = None if judged is None else machine.find_startable(judged, busy=busy)
            if judged is None or run is None:
                return
            judged = await self._begin(ref, record, judged, run, now_ms)
            busy = True

    async def _is_busy(self, state: ScheduleState) -> bool:
        return bool(await self._list_running(state))

    async def _list_running(self, state: ScheduleState) -> list[TaskRecord]:
        """The tasks of its recent runs that have not ended."""
        names = (run.task_id for run in state.recent if run.task_id)
        tasks = await self.writes.read_all(TaskRecord, names)
        return [one for one in tasks.values() if one.status not in ENDED]

    async def _judge(
        self, ref: EntityRef, row: DueRow, now_ms: int, *, busy: bool
    ) -> ScheduleState | None:
        """Judges due ticks and moves the row; returns the new state of the schedule, None where it is gone."""
        found: list[ScheduleState] = []

        def body(decision: Decision) -> AppendOptions:
            found.clear()
            state = _read(decision, ref)
            if state is None:
                return settle_row(row, None)
            # The row may have waited since its claim: a tick that is late when it is stored counts as late.
            at_ms = max(now_ms, decision.now_ms)
            step = machine.judge_ticks(ref.id, state, at_ms, self.calendar, busy=busy)
            if step is not None:
                decision.add(list_change_facts(ref.id, step))
                state = _read(decision, ref) or state
            found.append(state)
            starts = machine.find_startable(state, busy=busy) is not None
            visit_ms = machine.find_visit(ref.id, state, at_ms, busy=busy)
            return settle_row(row, at_ms + _AGAIN_MS if starts else visit_ms)

        await self.writes.decide(ref.id, [ref], body)
        self.writes.wake_duties(ref.shard)  # the next tick may be due before the next regular visit
        return found[0] if found else None

    async def _begin(
        self,
        ref: EntityRef,
        record: SessionRecord,
        state: ScheduleState,
        run: ScheduledRun,
        now_ms: int,
    ) -> ScheduleState | None:
        """Begins one run and records it; returns the new state of the schedule."""
        outcome = await self._send(record, state, run)
        found: list[ScheduleState] = []

        def body(decision: Decision) -> AppendOptions:
            found.clear()
            now = _read(decision, ref)
            if now is None:
                return AppendOptions()
            step = (
                machine.begin_run(now, run, outcome)
                if isinstance(outcome, str)
                else machine.fail_run(now, run, outcome)
            )
            if step is None:
                found.append(now)
                return AppendOptions()
            decision.add(list_change_facts(ref.id, step))
            now = _read(decision, ref) or now
            found.append(now)
            visit_ms = machine.find_visit(ref.id, now, now_ms, busy=True)
            return AppendOptions(due=(DueChange(name_row(ref.id), visit_ms),))

        await self.writes.decide(ref.id, [ref], body)
        self.writes.wake_duties(ref.shard)
        return found[0] if found else None

    async def _send(
        self, record: SessionRecord, state: ScheduleState, run: ScheduledRun
    ) -> str | ErrorDetail:
        """The task of a run, or why it has none."""
        session, terms = record.session_id, state.terms
        key = name_run(session, run.number)
        if (stored := await self._find_stored(session, run, key)) is not None:
            return stored
        principal = self.find_principal(record.principal, record.tenant)
        if principal is None:
            return ErrorDetail(
                "owner_gone",
                ErrorCategory.CALLER,
                "the owner of the schedule has no access any more",
            )
        command = SubmitTurn(
            agent=terms.agent,
            message={**terms.message, "messageId": key},
            source="schedule",
            wait="none",
            session_id=session,
        )
        try:
            if machine.may_replace(state, run):
                await self._replace(principal, state)
            return (await self.submit(principal, command, key)).task_id
        except _TRANSIENT:
            raise
        except PasserelleError as error:
            return ErrorDetail(error.stable_code, ErrorCategory.CALLER, str(error))

    async def _find_stored(self, session: str, run: ScheduledRun, key: str) -> str | None:
        """The task of the turn that an instance stored for a run before it died."""
        stream, after = StreamRef(StreamKind.SESSION, session), run.since or 0
        while page := await self.writes.log.read_page(stream, after):
            for entry in page:
                if entry.type != EventType.TURN_SUBMITTED:
                    continue
                fact = decode_event(entry.data, entry.frame, entry.facade).fact
                if isinstance(fact.payload, TurnSubmitted) and fact.payload.message_id == key:
                    return fact.scope.task_id
            after = page[-1].sequence
        return None

    async def _replace(self, principal: Principal, state: ScheduleState) -> None:
        for task in await self._list_running(state):
            with suppress(NotFound, NotCancelable):
                await self.cancel(principal, CancelTask(task.task_id, reason=_CANCELLED_BY))


def _read(decision: Decision, ref: EntityRef) -> ScheduleState | None:
    record = decision.state(ref)
    return record.schedule if isinstance(record, SessionRecord) else None
