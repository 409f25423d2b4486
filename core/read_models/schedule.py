"""A schedule as its owner reads it (OBJ-8)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field

from passerelle.core.facts import ErrorDetail
from passerelle.core.payloads.schedule import (
    MissedPolicy,
    OverlapPolicy,
    RunCause,
    ScheduleChange,
    ScheduledRun,
)
from passerelle.core.schedule.machine import ScheduleState, ScheduleStatus
from passerelle.core.session.machine import SessionRecord
from passerelle.core.wire.json import JsonObject
from passerelle.core.wire.record import record
from passerelle.core.wire.times import format_ms


@record
class ScheduleRunLine:
    """One run: its tick, its cause, and its task with status, or the error before a task existed."""

    number: int
    tick_at: str
    cause: RunCause
    task_id: str | None = None
    status: str | None = None
    error: ErrorDetail | None = None


@record
class ScheduleModel:
    """A schedule. Its id is that of its session, in which its runs are tasks and its steps are facts.

    ``waiting`` runs have not begun, ``recent`` are the newest begun ones, newest first. ``missed_ticks`` and
    ``skipped_ticks`` count ticks without a run: missed in time, or skipped because a run was active.
    """

    schedule_id: str
    status: ScheduleStatus
    agent: str
    message: JsonObject
    created_at: str
    timezone: str
    missed: MissedPolicy
    overlap: OverlapPolicy
    jitter_s: int
    grace_s: int
    runs: int
    missed_ticks: int
    skipped_ticks: int
    title: str | None = None
    labels: dict[str, str] = field(default_factory=dict[str, str])
    cron: str | None = None
    every_s: int | None = None
    next_at: str | None = None
    waiting: tuple[ScheduleRunLine, ...] = ()
    recent: tuple[ScheduleRunLine, ...] = ()
    version: int | None = None
    """Version of its record; in the answer to a command it is next to the schedule instead."""
    waits_for: str | None = None
    """The quota that keeps its next run from starting, and when it resets; only of a schedule that is read alone."""


@record
class ScheduleStep:
    """One step of a schedule: its time, and the change."""

    sequence: int
    at: str
    change: ScheduleChange


@record
class ScheduleHistory:
    """Steps in order; ``next_after`` is where to continue if there may be more."""

    steps: tuple[ScheduleStep, ...]
    next_after: int | None = None
    next_page_token: str = ""


def show_schedule(
    session: SessionRecord, state: ScheduleState, statuses: Mapping[str, str]
) -> ScheduleModel:
    """The model of a record; ``statuses`` are those of the tasks of its newest runs."""
    terms = state.terms
    return ScheduleModel(
        schedule_id=session.session_id,
        status=state.status,
        agent=terms.agent,
        message=terms.message,
        created_at=session.created_at,
        timezone=terms.timezone,
        missed=terms.missed,
        overlap=terms.overlap,
        jitter_s=terms.jitter_s,
        grace_s=terms.grace_s,
        runs=state.runs,
        missed_ticks=state.missed,
        skipped_ticks=state.skipped,
        title=session.title,
        labels=session.labels,
        cron=terms.cron,
        every_s=terms.every_s,
        next_at=None if state.next_ms is None else format_ms(state.next_ms),
        waiting=tuple(_show_run(run, None) for run in state.waiting),
        recent=tuple(
            _show_run(run, statuses.get(run.task_id or "")) for run in reversed(state.recent)
        ),
    )


def _show_run(run: ScheduledRun, status: str | None) -> ScheduleRunLine:
    return ScheduleRunLine(
        run.number, format_ms(run.tick_ms), run.cause, run.task_id, status, run.error
    )
