"""A schedule and its steps: members of ``session.updated`` in the session of the schedule (AP-7, OBJ-8).

A schedule is a session of its own. A tick is a fact of that session; a task exists only if it starts a run.
"""

from __future__ import annotations

from typing import Literal, TypeAlias

from passerelle.core.facts import ErrorDetail
from passerelle.core.wire.json import JsonObject
from passerelle.core.wire.record import record

MissedPolicy: TypeAlias = Literal["skip", "once", "all"]
"""What to do with missed ticks: nothing, one run for all of them, or a run for each."""
OverlapPolicy: TypeAlias = Literal["skip", "wait", "replace", "allow"]
"""What to do with a tick while a run is active: skip it, queue its run, cancel the active run, or run both."""
RunCause: TypeAlias = Literal["due", "missed", "requested"]


@record
class ScheduleTerms:
    """The message, its agent, and the times: by ``cron`` in a time zone, or every ``every_s`` from ``anchor_ms`` on.

    A tick is due at its time plus a part of ``jitter_s`` derived from the tick. It is missed once the next tick is due
    as well, or ``grace_s`` seconds have passed. Times are ms of the server's clock.
    """

    agent: str
    message: JsonObject
    anchor_ms: int
    cron: str | None = None
    every_s: int | None = None
    timezone: str = "UTC"
    missed: MissedPolicy = "once"
    overlap: OverlapPolicy = "skip"
    jitter_s: int = 0
    grace_s: int = 60


@record
class ScheduledRun:
    """One run of a schedule: its number from 1, its tick (ms), its cause, and its task or error.

    ``since`` is the sequence of the fact that created it; all its other facts are later.
    """

    number: int
    tick_ms: int
    cause: RunCause
    since: int | None = None
    task_id: str | None = None
    error: ErrorDetail | None = None


@record
class ScheduleChange:
    """One step of a schedule.

    ``ticked``: the ticks from ``tick_ms`` to ``through_ms`` were evaluated: ``runs`` will start, ``missed`` ticks were
    dropped as missed and ``skipped`` ones because a run was active; the next tick is ``next_ms``. ``begun`` and
    ``failed`` record the start of one run, ``requested`` a run on request.
    """

    step: Literal[
        "created", "ticked", "begun", "failed", "requested", "paused", "resumed", "deleted"
    ]
    by: str | None = None
    terms: ScheduleTerms | None = None
    tick_ms: int | None = None
    through_ms: int | None = None
    next_ms: int | None = None
    runs: tuple[ScheduledRun, ...] = ()
    missed: int = 0
    skipped: int = 0
