"""Schedules of a caller: created, paused, resumed, run now, deleted, listed and read (AP-7, OBJ-8).

A schedule is a session of its own, and its record is part of the session's. So followers of the session get every step,
and archive, export, verification and erasure of sessions apply to schedules.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import orjson

from passerelle.core.agent_name import ROUTER
from passerelle.core.batch import DueChange, EntityKind, EntityRef
from passerelle.core.errors import (
    InvalidInput,
    NotFound,
    UnsupportedOperation,
)
from passerelle.core.events import decode_event
from passerelle.core.frozen import frozen
from passerelle.core.index_changes import SCHEDULES
from passerelle.core.payloads.conversation import SessionUpdated
from passerelle.core.payloads.schedule import ScheduleChange, ScheduleTerms
from passerelle.core.ports.log import StreamKind, StreamRef
from passerelle.core.read_models.schedule import ScheduleHistory, ScheduleStep, show_schedule
from passerelle.core.schedule import machine
from passerelle.core.schedule.requests import (
    MOST_MESSAGE_BYTES,
    MOST_SCHEDULES,
    DeleteSchedule,
    PauseSchedule,
    ResumeSchedule,
    RunSchedule,
    ScheduleChanged,
)
from passerelle.core.session.machine import SessionRecord
from passerelle.core.task.record import TaskRecord
from passerelle.core.wire.codec import to_wire
from passerelle.core.wire.times import format_ms
from passerelle.delegation.jobs.schedules import list_change_facts, name_row
from passerelle.runtime.common.calendar import find_zone
from passerelle.runtime.common.calls import require_sending
from passerelle.runtime.records.idempotency import make_once
from passerelle.runtime.records.listed_sessions import create_session, read_session_page
from passerelle.runtime.records.ownership import load_own
from passerelle.runtime.records.writes import AppendOptions

if TYPE_CHECKING:
    from collections.abc import Callable

    from passerelle.core.decision import Decision, Held
    from passerelle.core.peer import Peer
    from passerelle.core.ports.projections import Projections
    from passerelle.core.principal import Principal
    from passerelle.core.schedule.machine import Calendar, ScheduleCommand, ScheduleState
    from passerelle.core.schedule.requests import (
        CreateSchedule,
        GetSchedule,
        GetScheduleHistory,
        ListSchedules,
    )
    from passerelle.core.wire.json import Json, JsonObject
    from passerelle.runtime.limits.costs import Spending
    from passerelle.runtime.records.writes import Writes


@frozen
class Schedules:
    """Creates, changes and reads schedules of callers."""

    writes: Writes
    projections: Projections
    calendar: Calendar
    find_peer: Callable[[str], Peer]
    spending: Spending

    async def create(
        self, principal: Principal, command: CreateSchedule, idem: str | None
    ) -> ScheduleChanged:
        """Creates a schedule, once per idempotency key.

        Raises:
            NotFound: an agent that the caller may not call.
            Forbidden: it may not send to the agent.
            InvalidInput: invalid times, or a message that is too long.
            UnsupportedOperation: the caller has its maximum of schedules.
            IdempotencyConflict: the key was used for another request.
        """
        require_sending(principal, command.agent)
        if command.agent != ROUTER:
            self.find_peer(command.agent)
        _check(command)

        async def prepare(ref: EntityRef) -> Callable[[Decision], DueChange]:
            await self._check_limit(principal)
            terms = _read_terms(command, self.writes.read_ms(ref.shard))
            next_ms = self.calendar.next_after(terms, terms.anchor_ms)
            if next_ms is None:
                raise InvalidInput("cron", "has no tick")

            def add(decision: Decision) -> DueChange:
                step = ScheduleChange("created", by=principal.id, terms=terms, next_ms=next_ms)
                decision.add(list_change_facts(ref.id, step))
                return DueChange(name_row(ref.id), machine.find_due(ref.id, terms, next_ms))

            return add

        held, repeated = await create_session(
            self.writes, self.projections, principal, command, idem, prepare
        )
        return await self._render(held, repeated=repeated)

    async def _check_limit(self, principal: Principal) -> None:
        """Concurrent requests may exceed the limit by a few."""
        if await self.projections.count_index(principal.key, SCHEDULES, None) >= MOST_SCHEDULES:
            raise UnsupportedOperation(
                f"a caller has at most {MOST_SCHEDULES:,} schedules: delete one first",
                limit=MOST_SCHEDULES,
            )

    async def change(
        self,
        principal: Principal,
        command: PauseSchedule | ResumeSchedule | RunSchedule | DeleteSchedule,
        idem: str | None,
    ) -> ScheduleChanged:
        """Carries out a command; the due row sets the time of the schedule's next check.

        Raises:
            NotFound: no schedule of the caller, or an agent that it may not call.
            Forbidden: it may not send to the agent.
            UnsupportedOperation: its status does not allow it.
            IdempotencyConflict: the key was used for another request.
        """
        found = await self._find(principal, command.schedule_id)
        ref, writes = EntityRef(EntityKind.SESSION, command.schedule_id), self.writes
        once = make_once(principal, command, None if idem is None else f"{idem}\0{ref.id}")
        if await once.find(writes.log, ref.shard) is not None:
            return await self._render(found, repeated=True)

        def body(decision: Decision) -> AppendOptions:
            state = _require(decision, ref)
            wanted = self._read_command(principal, command, state, decision.now_ms)
            decision.add(list_change_facts(ref.id, machine.decide(state, wanted)))
            state = _require(decision, ref)
            # Running runs are checked when the row comes due.
            visit_ms = machine.find_visit(ref.id, state, decision.now_ms, busy=True)
            row = DueChange(name_row(ref.id), visit_ms)
            return AppendOptions(idem=once.remember(ref.id), due=(row,))

        written = await writes.change(ref.id, [ref], body)
        writes.wake_duties(ref.shard)
        return await self._render(written.held[ref], repeated=written.repeated is not None)

    def _read_command(
        self,
        principal: Principal,
        command: PauseSchedule | ResumeSchedule | RunSchedule | DeleteSchedule,
        state: ScheduleState,
        now_ms: int,
    ) -> ScheduleCommand:
        match command:
            case PauseSchedule():
                return machine.StopTicks(principal.id)
            case ResumeSchedule():
                next_ms = self.calendar.next_after(state.terms, now_ms)
                return machine.StartTicks(principal.id, next_ms)
            case RunSchedule():
                require_sending(principal, state.terms.agent)
                return machine.RequestRun(principal.id, now_ms)
            case DeleteSchedule():
                return machine.EndSchedule(principal.id)

    async def read(self, principal: Principal, query: GetSchedule) -> JsonObject:
        """A schedule with its newest runs, and the quota that they wait for. Raises NotFound."""
        held = await self._find(principal, query.schedule_id)
        changed, record = await self._render(held), held.record
        state = record.schedule if isinstance(record, SessionRecord) else None
        waits = await self._find_wait(principal, state) if state is not None else None
        more: JsonObject = {} if waits is None else {"waitsFor": waits}
        return {**changed.schedule, "version": changed.version, **more}

    async def _find_wait(self, principal: Principal, state: ScheduleState) -> str | None:
        if machine.find_startable(state, busy=False) is None:
            return None
        shortage = await self.spending.find_shortage(principal, state.terms.agent)
        return None if shortage is None else f"{shortage.text}, until {format_ms(shortage.till_ms)}"

    async def list(self, principal: Principal, query: ListSchedules) -> JsonObject:
        """One page: ``schedules``, and ``nextPageToken`` if there may be more.

        Raises:
            InvalidInput: an invalid page token.
        """
        page, token = await read_session_page(
            self.projections,
            self.writes,
            principal.key,
            SCHEDULES,
            query.page_token,
            query.page_size,
        )
        found: list[Json] = []
        for record, held in page:
            # A recently deleted schedule still has its session.
            if record.schedule and record.ticks:
                model = show_schedule(record, record.schedule, {})
                found.append({**to_wire(model), "version": held.stamp.version})
        return {"schedules": found, "nextPageToken": token}

    async def read_history(self, principal: Principal, query: GetScheduleHistory) -> JsonObject:
        """The steps of a schedule in order. Raises NotFound."""
        await self._find(principal, query.schedule_id)
        stream = StreamRef(StreamKind.SESSION, query.schedule_id)
        after, steps = query.after, list[ScheduleStep]()
        while page := await self.writes.log.read_page(stream, after):
            for entry in page:
                after = entry.sequence
                if entry.type != SessionUpdated.type:
                    continue
                event = decode_event(entry.data, entry.frame, entry.facade)
                payload = event.fact.payload
                if isinstance(payload, SessionUpdated) and payload.schedule is not None:
                    steps.append(ScheduleStep(event.sequence, event.timestamp, payload.schedule))
                if len(steps) == query.limit:
                    return to_wire(ScheduleHistory(tuple(steps), after, str(after)))
        return to_wire(ScheduleHistory(tuple(steps)))

    async def _find(self, principal: Principal, schedule_id: str) -> Held:
        record, held = await load_own(
            self.writes, SessionRecord, principal, schedule_id, "schedule"
        )
        if record.schedule is None:
            raise NotFound("schedule", schedule_id)
        return held

    async def _render(self, held: Held, *, repeated: bool = False) -> ScheduleChanged:
        record = held.record
        if not isinstance(record, SessionRecord) or record.schedule is None:
            raise NotFound("schedule", "")
        named = (run.task_id for run in record.schedule.recent if run.task_id)
        tasks = await self.writes.read_all(TaskRecord, named)
        statuses = {name: str(one.status) for name, one in tasks.items()}
        model = show_schedule(record, record.schedule, statuses)
        return ScheduleChanged(to_wire(model), held.stamp.version, repeated)


def _require(decision: Decision, ref: EntityRef) -> ScheduleState:
    record = decision.state(ref)
    if not isinstance(record, SessionRecord) or record.schedule is None:
        raise NotFound("schedule", ref.id)
    return record.schedule


def _check(command: CreateSchedule) -> None:
    if (command.cron is None) == (command.every_s is None):
        raise InvalidInput("cron", "exactly one of cron and everyS is required")
    if command.every_s is not None and command.jitter_s >= command.every_s:
        raise InvalidInput("jitterS", "should be less than everyS")
    if len(orjson.dumps(command.message)) > MOST_MESSAGE_BYTES:
        raise InvalidInput("message", f"takes at most {MOST_MESSAGE_BYTES} bytes")
    find_zone(command.timezone)
    for name in ("taskId", "contextId"):
        if command.message.get(name):
            raise InvalidInput(f"message.{name}", "every run opens a context of its own")


def _read_terms(command: CreateSchedule, now_ms: int) -> ScheduleTerms:
    return ScheduleTerms(
        agent=command.agent,
        message=command.message,
        anchor_ms=now_ms,
        cron=command.cron,
        every_s=command.every_s,
        timezone=command.timezone,
        missed=command.missed,
        overlap=command.overlap,
        jitter_s=command.jitter_s,
        grace_s=command.grace_s,
    )
