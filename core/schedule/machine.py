"""The schedule machine: its commands, the evaluation of ticks, and the next time to check.

Pure: the calendar and the time are arguments. ``TABLE`` lists what a caller may do. A due tick is evaluated once: the
same step moves the schedule past it and names the runs to start, so a second evaluation finds nothing left. A named run
waits until it has begun or failed; its number is its key, so it begins once.
"""

from __future__ import annotations

import hashlib
from enum import StrEnum
from typing import TYPE_CHECKING, Final, Protocol, TypeAlias

from passerelle.core.errors import UnsupportedOperation
from passerelle.core.frozen import frozen
from passerelle.core.payloads.schedule import ScheduleChange, ScheduledRun, ScheduleTerms
from passerelle.core.wire.record import change, record

if TYPE_CHECKING:
    from collections.abc import Iterator

    from passerelle.core.facts import ErrorDetail

RECENT_RUNS: Final = 32
"""Runs in the record; earlier ones are in the history of the session."""
MOST_WAITING: Final = 100
"""Waiting runs; of more missed ticks the newest get a run."""
MOST_TICKS: Final = 10_000
"""Ticks that are counted one by one; of a longer absence the rest is skipped."""
BLOCKED_MS: Final = 2_000
"""Delay before a run that waits for another is checked again."""


class ScheduleStatus(StrEnum):
    """A deleted schedule starts no more runs, and its session can be archived."""

    ACTIVE = "active"
    PAUSED = "paused"
    DELETED = "deleted"


@record
class ScheduleState:
    """The state of a schedule. ``next_ms`` is the first tick not evaluated yet; ``runs`` counts all runs.

    ``waiting`` are runs that have not begun, in order; ``recent`` the newest that have begun or failed to.
    """

    terms: ScheduleTerms
    status: ScheduleStatus = ScheduleStatus.ACTIVE
    next_ms: int | None = None
    runs: int = 0
    waiting: tuple[ScheduledRun, ...] = ()
    recent: tuple[ScheduledRun, ...] = ()
    missed: int = 0
    skipped: int = 0


class Calendar(Protocol):
    """Computes the ticks of a schedule."""

    def next_after(self, terms: ScheduleTerms, after_ms: int) -> int | None:
        """The first tick after a time, in ms; None if there is none."""
        ...


@frozen
class StopTicks:
    """Stops ticks until the schedule is resumed; running tasks continue."""

    by: str


@frozen
class StartTicks:
    """Restarts ticks from ``next_ms`` on; those during the pause are not missed."""

    by: str
    next_ms: int | None


@frozen
class RequestRun:
    """Starts a run now, even while another is active."""

    by: str
    now_ms: int


@frozen
class EndSchedule:
    """Starts nothing more; running tasks continue."""

    by: str


ScheduleCommand: TypeAlias = StopTicks | StartTicks | RequestRun | EndSchedule

_ACTIVE, _PAUSED, _DELETED = ScheduleStatus
TABLE: Final[dict[type[ScheduleCommand], dict[ScheduleStatus, ScheduleStatus]]] = {
    StopTicks: {_ACTIVE: _PAUSED},
    StartTicks: {_PAUSED: _ACTIVE},
    RequestRun: {_ACTIVE: _ACTIVE, _PAUSED: _PAUSED},
    EndSchedule: {_ACTIVE: _DELETED, _PAUSED: _DELETED},
}


def decide(state: ScheduleState, command: ScheduleCommand) -> ScheduleChange:
    """The step of a command.

    Raises:
        UnsupportedOperation: the status does not allow it, or too many runs wait.
    """
    if state.status not in TABLE[type(command)]:
        raise UnsupportedOperation(f"the schedule is {state.status}", status=state.status)
    match command:
        case StopTicks(by=by):
            return ScheduleChange("paused", by)
        case StartTicks(by=by, next_ms=next_ms):
            return ScheduleChange("resumed", by, next_ms=next_ms)
        case EndSchedule(by=by):
            return ScheduleChange("deleted", by)
        case RequestRun(by=by, now_ms=now_ms):
            if len(state.waiting) >= MOST_WAITING:
                raise UnsupportedOperation("too many runs wait already", waiting=len(state.waiting))
            run = ScheduledRun(state.runs + 1, now_ms, "requested")
            return ScheduleChange("requested", by, runs=(run,))


def judge_ticks(
    session: str, state: ScheduleState, now_ms: int, calendar: Calendar, *, busy: bool
) -> ScheduleChange | None:
    """Evaluates the due ticks; None if none is due. ``busy``: a run of the schedule is active."""
    if state.status is not _ACTIVE or state.next_ms is None:
        return None
    ticks, next_ms = _list_due(session, state, now_ms, calendar)
    if not ticks:
        return None
    terms, newest = state.terms, ticks[-1]
    late_ms = now_ms - find_due(session, terms, newest)
    on_time = late_ms <= terms.grace_s * 1000
    missed = ticks[:-1] if on_time else ticks
    begin = [(tick, "missed") for tick in _choose_missed(terms, missed, on_time=on_time)]
    skipped = 0
    behind = busy or bool(state.waiting)
    if begin and terms.missed == "once" and terms.overlap == "skip" and behind:
        begin, skipped = [], 1
    dropped = len(missed) - len(begin) - skipped
    if on_time:
        behind = behind or bool(begin)
        if _has_run(state, len(begin), terms, behind=behind):
            begin.append((newest, "due"))
        else:
            skipped += 1
    room = MOST_WAITING - len(state.waiting)
    dropped, begin = dropped + max(0, len(begin) - room), begin[max(0, len(begin) - room) :]
    return ScheduleChange(
        "ticked",
        tick_ms=ticks[0],
        through_ms=newest,
        next_ms=next_ms,
        runs=tuple(
            ScheduledRun(state.runs + place, tick, "due" if cause == "due" else "missed")
            for place, (tick, cause) in enumerate(begin, 1)
        ),
        missed=dropped,
        skipped=skipped,
    )


def _list_due(
    session: str, state: ScheduleState, now_ms: int, calendar: Calendar
) -> tuple[list[int], int | None]:
    """The due ticks, and the next one."""
    ticks = list[int]()
    tick = state.next_ms
    while tick is not None and find_due(session, state.terms, tick) <= now_ms:
        ticks.append(tick)
        if len(ticks) == MOST_TICKS:
            return ticks, calendar.next_after(state.terms, max(tick, now_ms))
        tick = calendar.next_after(state.terms, tick)
    return ticks, tick


def _choose_missed(terms: ScheduleTerms, missed: list[int], *, on_time: bool) -> list[int]:
    """The missed ticks that get a run."""
    match terms.missed:
        case "skip":
            return []
        case "once":
            # The tick that is on time is the one run.
            return [] if on_time else missed[-1:]
        case "all":
            return missed


def _has_run(state: ScheduleState, late: int, terms: ScheduleTerms, *, behind: bool) -> bool:
    """Whether the tick that is on time gets a run, with ``late`` runs of missed ones before it."""
    match terms.overlap:
        case "skip":
            return not behind or late > 0
        case "wait":
            # One waiting run covers all ticks that come while it waits.
            return not any(run.cause == "due" for run in state.waiting)
        case "replace" | "allow":
            return True


def find_due(session: str, terms: ScheduleTerms, tick_ms: int) -> int:
    """When a tick is due: its time plus its part of the jitter, which is derived from the tick."""
    if not terms.jitter_s:
        return tick_ms
    digest = hashlib.sha256(f"{session}\0{tick_ms}".encode()).digest()
    return tick_ms + int.from_bytes(digest[:6], "big") % (terms.jitter_s * 1000)


def find_startable(state: ScheduleState, *, busy: bool) -> ScheduledRun | None:
    """The run that may begin now; ``busy``: an earlier run is active."""
    for run in state.waiting:
        if run.cause == "requested":
            return run
    if state.status is not _ACTIVE or not state.waiting:
        return None
    first = state.waiting[0]
    if not busy or state.terms.overlap == "allow" or may_replace(state, first):
        return first
    return None


def may_replace(state: ScheduleState, run: ScheduledRun) -> bool:
    """Whether active runs are cancelled for it; a run of a missed tick waits instead."""
    return state.terms.overlap == "replace" and run.cause == "due"


def find_visit(session: str, state: ScheduleState, now_ms: int, *, busy: bool) -> int | None:
    """When to check the schedule again, in ms; None: not before a command changes it."""
    if find_startable(state, busy=busy) is not None:
        return now_ms
    times = list(_list_visits(session, state, now_ms))
    return min(times, default=None)


def _list_visits(session: str, state: ScheduleState, now_ms: int) -> Iterator[int]:
    if state.status is not _ACTIVE:
        return
    if state.waiting:
        yield now_ms + BLOCKED_MS
    if state.next_ms is not None:
        yield find_due(session, state.terms, state.next_ms)


def begin_run(state: ScheduleState, run: ScheduledRun, task_id: str) -> ScheduleChange | None:
    """The step that records a run's task; None if it is recorded already."""
    return _settle(state, change(run, task_id=task_id), "begun")


def fail_run(state: ScheduleState, run: ScheduledRun, error: ErrorDetail) -> ScheduleChange | None:
    """The step that records a run's failure to begin; None if its end is recorded already."""
    return _settle(state, change(run, error=error), "failed")


def _settle(state: ScheduleState, run: ScheduledRun, step: str) -> ScheduleChange | None:
    if any(one.number == run.number for one in state.recent):
        return None
    return ScheduleChange("begun" if step == "begun" else "failed", runs=(run,))


def evolve(
    state: ScheduleState | None, step: ScheduleChange, sequence: int
) -> ScheduleState | None:
    """The schedule after a step stored at that sequence; total."""
    if step.step == "created" and step.terms is not None:
        return state or ScheduleState(step.terms, next_ms=step.next_ms)
    if state is None:
        return None
    match step.step:
        case "created":
            return state
        case "ticked":
            return change(
                _add(state, step, sequence),
                next_ms=step.next_ms,
                missed=state.missed + step.missed,
                skipped=state.skipped + step.skipped,
            )
        case "requested":
            return _add(state, step, sequence)
        case "begun" | "failed":
            settled = {run.number for run in step.runs}
            return change(
                state,
                waiting=tuple(run for run in state.waiting if run.number not in settled),
                recent=(*state.recent, *step.runs)[-RECENT_RUNS:],
            )
        case "paused":
            return change(state, status=_PAUSED, next_ms=None)
        case "resumed":
            return change(state, status=_ACTIVE, next_ms=step.next_ms)
        case "deleted":
            return change(state, status=_DELETED, next_ms=None, waiting=())


def _add(state: ScheduleState, step: ScheduleChange, sequence: int) -> ScheduleState:
    return change(
        state,
        waiting=(*state.waiting, *(change(run, since=sequence) for run in step.runs)),
        runs=max([state.runs, *(run.number for run in step.runs)]),
    )
