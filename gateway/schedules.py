"""Builds the parts that handle schedules and jobs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from passerelle.control.job_reads import JobReads, Results
from passerelle.control.jobs import Jobs
from passerelle.control.schedules import Schedules
from passerelle.core.frozen import frozen
from passerelle.core.job.requests import (
    CancelJob,
    GetJob,
    GetJobResults,
    ListJobs,
    RetryJob,
    SubmitJob,
)
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
from passerelle.delegation.jobs.jobs import JobRunner
from passerelle.delegation.jobs.schedules import ScheduleRunner
from passerelle.runtime.common.calendar import ZonedCalendar
from passerelle.runtime.common.calls import require_sending

if TYPE_CHECKING:
    from asyncio import Future

    from passerelle.control.cancellation import Cancelling
    from passerelle.control.handlers import Handlers
    from passerelle.control.messages import Messages
    from passerelle.control.task_reads import TaskReads
    from passerelle.core.commands import CancelTask, SubmitTurn, TurnAccepted
    from passerelle.core.principal import Principal
    from passerelle.delegation.runs.active_runs import Begun
    from passerelle.gateway.dependencies import CoreServices
    from passerelle.permission_bridge.governing.command_gate import CommandGate


@frozen
class ScheduleHandlers:
    """Handles commands and queries about schedules and jobs, and runs them."""

    schedules: Schedules
    runner: ScheduleRunner
    jobs: Jobs
    items: JobRunner

    def register(self, handlers: Handlers) -> None:
        """Registers them."""
        handlers.on_command(CreateSchedule, self.schedules.create)
        handlers.on_command(PauseSchedule, self.schedules.change)
        handlers.on_command(ResumeSchedule, self.schedules.change)
        handlers.on_command(RunSchedule, self.schedules.change)
        handlers.on_command(DeleteSchedule, self.schedules.change)
        handlers.on_query(GetSchedule, self.schedules.read)
        handlers.on_query(ListSchedules, self.schedules.list)
        handlers.on_query(GetScheduleHistory, self.schedules.read_history)
        handlers.on_command(SubmitJob, self.jobs.submit)
        handlers.on_command(CancelJob, self.jobs.change)
        handlers.on_command(RetryJob, self.jobs.change)
        handlers.on_query(GetJob, self.jobs.reads.read)
        handlers.on_query(ListJobs, self.jobs.reads.list)
        handlers.on_query(GetJobResults, self.jobs.reads.read_results)


def make_schedules(
    services: CoreServices,
    messages: Messages,
    cancelling: Cancelling,
    reads: TaskReads,
    governing: CommandGate,
) -> ScheduleHandlers:
    """A scheduled run, or a job item, is a turn like any other, submitted by its owner."""
    deps, store, writes = services.deps, services.store, services.writes
    calendar = ZonedCalendar()
    job_reads = JobReads(writes, store.projections, Results(reads), deps.spending)

    async def send(
        principal: Principal, command: SubmitTurn, idem: str
    ) -> tuple[TurnAccepted, Begun | None]:
        # The grants may have changed since the job or schedule was made.
        require_sending(principal, command.agent)
        return await messages.submit(principal, command, idem)

    def submit(principal: Principal, command: SubmitTurn, idem: str) -> Future[TurnAccepted]:
        return services.dispatch.commands.open_run(send(principal, command, idem))

    async def cancel(principal: Principal, command: CancelTask) -> object:
        await governing.govern(principal, command)
        return await cancelling.cancel(principal, command)

    return ScheduleHandlers(
        Schedules(writes, store.projections, calendar, deps.find_peer, deps.spending),
        ScheduleRunner(writes, calendar, deps.find_principal, submit, cancel),
        Jobs(
            writes,
            store.projections,
            store.blobs,
            deps.find_peer,
            reads.ownership,
            job_reads,
            governing.govern,
        ),
        JobRunner(
            writes,
            store.blobs,
            deps.find_principal,
            submit,
            cancelling.cancel,
            services.dispatch.runs.find,
        ),
    )
