"""What a schedule is, and what became of it: members of ``session.updated`` of the session that it has (AP-7, OBJ-8).

A schedule is a session of its own. A tick is a fact of that session, and a task exists only where one fires.
"""

from __future__ import annotations

from typing import Literal, TypeAlias

from passerelle.core.facts import ErrorDetail
from passerelle.core.wire.json import JsonObject
from passerelle.core.wire.record import record

MissedPolicy: TypeAlias = Literal["skip", "once", "all"]
"""What becomes of ticks whose time went by unseen: nothing, one run for all of them, or a run for each."""
OverlapPolicy: TypeAlias = Literal["skip", "wait", "replace", "allow"]
"""What becomes of a tick while a run goes on: nothing, its run waits, the run before is cancelled, or both go on."""
RunCause: TypeAlias = Literal["due", "missed", "requested"]


@record
class ScheduleTerms:
    """What is sent, to whom, and when: by ``cron`` in a time zone, or every so many seconds from ``anchor_ms`` on.

    A tick is due at its time and a part of ``jitter_s`` that only the tick decides. It is missed once the next tick is
    due as well, or ``grace_s`` have passed. Times are ms of the server's clock.
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
    """One run of a schedule: its number from 1, the tick that it is for (ms), why, and the task or what went wrong.

    ``since`` is the sequence of the fact that named it; whatever came of it stands behind that.
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

    ``ticked``: the ticks from ``tick_ms`` to ``through_ms`` were judged: ``runs`` are to begin, ``missed`` were dropped
    as missed ones and ``skipped`` because a run went on; the next tick is ``next_ms``. ``begun`` and ``failed`` say
    what became of one run, ``requested`` that one is wanted now.
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
