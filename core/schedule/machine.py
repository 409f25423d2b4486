"""The schedule machine: what a schedule may be told, what its ticks come to, and when it has to be looked at again.

Pure: the calendar and the time are arguments. ``TABLE`` is the whole of what a caller may do. A tick that came due is
judged once: in one step the schedule moves on behind it and names the runs that follow, so whoever judges again finds
nothing left. A run that is named waits until it has begun or has failed, and its number is its key: it begins once.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Final, Protocol, TypeAlias

from passerelle.core.errors import UnsupportedOperation
from passerelle.core.payloads.schedule import ScheduleChange, ScheduledRun, ScheduleTerms
from passerelle.core.wire.record import change, record

if TYPE_CHECKING:
    from collections.abc import Iterator

    from passerelle.core.facts import ErrorDetail

RECENT_RUNS: Final = 32
"""Runs that the record names; those before them stand in the history of the session."""
MOST_WAITING: Final = 100
"""Runs that wait; of more ticks that were missed the newest have one."""
MOST_TICKS: Final = 10_000
"""Ticks that are counted one by one; a longer absence is passed over from there on."""
BLOCKED_MS: Final = 2_000
"""Until a run that waits for the one before is looked at again."""


class ScheduleStatus(StrEnum):
    """A schedule that is deleted starts nothing any more, and its session can leave memory."""

    ACTIVE = "active"
    PAUSED = "paused"
    DELETED = "deleted"


@record
class ScheduleState:
    """Where a schedule stands. ``next_ms`` is its first tick that was not judged; ``runs`` counts the runs so far.

    ``waiting`` are runs that have not begun, in order; ``recent`` the newest that have, or have failed to.
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
    """When a schedule has its ticks."""

    def next_after(self, terms: ScheduleTerms, after_ms: int) -> int | None:
        """The first tick behind a time, in ms; None where there is none any more."""
        ...


@dataclass(frozen=True, slots=True)
class StopTicks:
    """No tick counts until it is resumed; what has begun goes on."""

    by: str


@dataclass(frozen=True, slots=True)
class StartTicks:
    """Ticks count from ``next_ms`` on; those of the pause are no missed ones."""

    by: str
    next_ms: int | None


@dataclass(frozen=True, slots=True)
class RequestRun:
    """A run now, whatever else goes on."""

    by: str
    now_ms: int


@dataclass(frozen=True, slots=True)
class EndSchedule:
    """Nothing begins any more; what has begun goes on."""

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
        UnsupportedOperation: the schedule is in no status for it, or has too many runs that wait.
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
    """What the ticks come to that are due; None where none is. ``busy``: a run of the schedule goes on."""
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
        if _waits_its_turn(state, len(begin), terms, behind=behind):
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
    """The ticks that are due, and the one behind them."""
    ticks = list[int]()
    tick = state.next_ms
    while tick is not None and find_due(session, state.terms, tick) <= now_ms:
        ticks.append(tick)
        if len(ticks) == MOST_TICKS:
            return ticks, calendar.next_after(state.terms, max(tick, now_ms))
        tick = calendar.next_after(state.terms, tick)
    return ticks, tick


def _choose_missed(terms: ScheduleTerms, missed: list[int], *, on_time: bool) -> list[int]:
    """Those of the missed ticks that have a run."""
    match terms.missed:
        case "skip":
            return []
        case "once":
            # A tick that is on time is the one run that follows.
            return [] if on_time else missed[-1:]
        case "all":
            return missed


def _waits_its_turn(state: ScheduleState, late: int, terms: ScheduleTerms, *, behind: bool) -> bool:
    """Whether the tick that is on time has a run, with ``late`` runs of missed ones before it."""
    match terms.overlap:
        case "skip":
            return not behind or late > 0
        case "wait":
            # One that waits stands for all that come while it does.
            return not any(run.cause == "due" for run in state.waiting)
        case "replace" | "allow":
            return True


def find_due(session: str, terms: ScheduleTerms, tick_ms: int) -> int:
    """When a tick is acted on: at its time and a part of the jitter, which is the same whoever asks."""
    if not terms.jitter_s:
        return tick_ms
    digest = hashlib.sha256(f"{session}\0{tick_ms}".encode()).digest()
    return tick_ms + int.from_bytes(digest[:6], "big") % (terms.jitter_s * 1000)


def find_startable(state: ScheduleState, *, busy: bool) -> ScheduledRun | None:
    """The run that may begin now, while a run before it goes on (``busy``) or not."""
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
    """Whether the runs before it are cancelled for it; one for a missed tick waits for them."""
    return state.terms.overlap == "replace" and run.cause == "due"


def find_visit(session: str, state: ScheduleState, now_ms: int, *, busy: bool) -> int | None:
    """When the schedule has to be looked at again, in ms; None: not before somebody changes it."""
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
    """That a run has its task; None where that was said already."""
    return _settle(state, change(run, task_id=task_id), "begun")


def fail_run(state: ScheduleState, run: ScheduledRun, error: ErrorDetail) -> ScheduleChange | None:
    """That a run could not begin; None where its end was said already."""
    return _settle(state, change(run, error=error), "failed")


def _settle(state: ScheduleState, run: ScheduledRun, step: str) -> ScheduleChange | None:
    if any(one.number == run.number for one in state.recent):
        return None
    return ScheduleChange("begun" if step == "begun" else "failed", runs=(run,))


def evolve(
    state: ScheduleState | None, step: ScheduleChange, sequence: int
) -> ScheduleState | None:
    """The schedule after a step that is the fact of that sequence; total."""
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
