"""The parts that work on schedules, put together."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from passerelle.control.schedules import Schedules
from passerelle.core.schedule.requests import (
    CreateSchedule,
    DeleteSchedule,
    GetSchedule,
    GetScheduleHistory,
    ListSchedules,
    PauseSchedule,
    ResumeSchedule,
    RunSchedule,
)
from passerelle.delegation.jobs.schedules import ScheduleRunner
from passerelle.runtime.common.calendar import ZonedCalendar

if TYPE_CHECKING:
    from passerelle.control.cancellation import Cancelling
    from passerelle.control.handlers import Handlers
    from passerelle.control.messages import Messages
    from passerelle.core.commands import SubmitTurn, TurnAccepted
    from passerelle.core.principal import Principal
    from passerelle.gateway.dependencies import CoreServices


@dataclass(frozen=True, slots=True)
class ScheduleHandlers:
    """Who works on the schedules of callers, and has them fire."""

    schedules: Schedules
    runner: ScheduleRunner

    def register(self, handlers: Handlers) -> None:
        """Adds them."""
        handlers.on_command(CreateSchedule, self.schedules.create)
        handlers.on_command(PauseSchedule, self.schedules.change)
        handlers.on_command(ResumeSchedule, self.schedules.change)
        handlers.on_command(RunSchedule, self.schedules.change)
        handlers.on_command(DeleteSchedule, self.schedules.change)
        handlers.on_query(GetSchedule, self.schedules.read)
        handlers.on_query(ListSchedules, self.schedules.list)
        handlers.on_query(GetScheduleHistory, self.schedules.read_history)


def make_schedules(
    services: CoreServices, messages: Messages, cancelling: Cancelling
) -> ScheduleHandlers:
    """A run of a schedule is a turn like any other, by whoever owns the schedule."""
    deps, store, writes = services.deps, services.store, services.writes
    calendar = ZonedCalendar()

    async def submit(principal: Principal, command: SubmitTurn, idem: str) -> TurnAccepted:
        return await services.dispatch.commands.open_run(messages.submit(principal, command, idem))

    return ScheduleHandlers(
        Schedules(writes, store.log, store.projections, calendar, deps.find_peer),
        ScheduleRunner(writes, store.log, calendar, deps.find_principal, submit, cancelling.cancel),
    )
