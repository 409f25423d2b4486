"""Read model of a thread: activity, open approvals, incidents, and queued turns (SNAP-2)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import field
from typing import Final, Literal, TypeAlias

from passerelle.core.facts import CompactedTurns, ErrorDetail
from passerelle.core.read_models.artifacts import VersionChain, list_versions
from passerelle.core.read_models.blockers import AskedQuestions, BlockedTask, list_blocked
from passerelle.core.read_models.mark import FreshnessMark, not_applicable, unavailable
from passerelle.core.read_models.task import TaskLine, doubt_status, name_task, show_task
from passerelle.core.read_models.turn_queue import QueueSnapshot, list_gated, show_queue
from passerelle.core.session.boundaries import RolledBack
from passerelle.core.session.thread import ThreadRecord, ThreadStatus
from passerelle.core.task.record import TaskRecord
from passerelle.core.task.status import ENDED, Status
from passerelle.core.wire.record import record

_INCIDENTS: Final = 20

Activity: TypeAlias = Status | Literal["streaming"]
_PRIORITY: Final[tuple[Activity, ...]] = (
    Status.WAITING_PERMISSION,
    Status.WAITING_INPUT,
    Status.WAITING_RESOURCE,
    Status.BLOCKED,
    Status.PAUSED,
    Status.LOST,
    Status.STALE,
    Status.CANCELLING,
    Status.RETRYING,
    "streaming",
    Status.RUNNING,
    Status.PREPARING,
    Status.UNKNOWN,
    Status.QUEUED,
    Status.ACCEPTED,
    Status.DRAFT,
)
"""States that need a person come before those that progress without one."""


@record
class Incident:
    """An error of a task of the thread, or of one of its runs."""

    task_id: str
    error: ErrorDetail
    at: str
    run_id: str | None = None


@record
class Diagnostics:
    """Figures for troubleshooting. ``remotes`` is the context id sent to each agent."""

    turns: int
    tasks: int
    open_tasks: int
    doubtful: tuple[str, ...] = ()
    """Tasks whose status may be outdated."""
    remotes: dict[str, str] = field(default_factory=dict[str, str])


@record
class ThreadModel:
    """One thread; ``sequence`` is that of the last event in it."""

    thread_id: str
    session_id: str
    context_id: str
    sequence: int
    status: ThreadStatus
    created_at: str
    updated_at: str
    active_turns: tuple[str, ...]
    pending: tuple[BlockedTask, ...]
    tasks: tuple[TaskLine, ...]
    incidents: tuple[Incident, ...]
    artifacts: tuple[VersionChain, ...]
    queue: QueueSnapshot
    diagnostics: Diagnostics
    activity: Activity | None = None
    """The most important activity of its open tasks (CF-1…CF-11)."""
    last_outcome: str | None = None
    rolled_back: RolledBack | None = None
    """The last rollback; the task lines show which tasks were rolled back."""
    compactions: tuple[CompactedTurns, ...] = ()
    """The newest boundaries up to which a summary replaces its turns."""
    marks: dict[str, FreshnessMark] = field(default_factory=dict[str, FreshnessMark])


def show_thread(
    thread: ThreadRecord,
    tasks: Sequence[TaskRecord],
    sequence: int,
    now_ms: int,
    left_out: int = 0,
    archive: str | None = None,
    waiting: Iterable[object] = (),
    questions: AskedQuestions | None = None,
) -> ThreadModel:
    """The model of a thread with its tasks. ``left_out`` older tasks of the session were not read.

    ``waiting`` are the tasks of its queued turns, in order, and ``questions`` the open approvals of ``tasks`` that were
    read. ``archive`` is the ref of its session if that is archived.
    """
    mine = [task for task in tasks if task.thread_id == thread.thread_id]
    marks: dict[str, FreshnessMark] = {}
    if thread.last_outcome is None:
        marks["lastOutcome"] = not_applicable("no turn has ended")
    if not thread.artifacts:
        marks["artifacts"] = not_applicable("no task of the thread has produced a named artifact")
    if left_out:
        marks["tasks"] = unavailable(f"{left_out} older tasks of the session were not read")
    lines = tuple(show_task(task, now_ms, archive) for task in mine)
    activity = _find_activity(lines)
    if activity is None:
        marks["activity"] = not_applicable("no task of the thread is open")
    incidents = sorted((one for task in mine for one in _find(task)), key=lambda one: one.at)
    return ThreadModel(
        thread_id=thread.thread_id,
        session_id=thread.session_id,
        context_id=thread.context_id,
        sequence=sequence,
        status=thread.status,
        created_at=thread.created_at,
        updated_at=thread.updated_at,
        active_turns=thread.active_turns,
        pending=list_blocked(mine, questions or {}),
        tasks=lines,
        incidents=tuple(incidents[-_INCIDENTS:]),
        artifacts=list_versions(thread, mine),
        queue=show_queue(thread, waiting, list_gated(mine, questions or {}, thread.owner)),
        diagnostics=Diagnostics(
            turns=thread.turns,
            tasks=len(mine),
            open_tasks=sum(task.status not in ENDED for task in mine),
            doubtful=tuple(name_task(task) for task in mine if doubt_status(task, now_ms)),
            remotes=thread.remotes,
        ),
        activity=activity,
        last_outcome=thread.last_outcome,
        rolled_back=thread.rolled_back,
        compactions=thread.compactions or (),
        marks=marks,
    )


def _find_activity(lines: Sequence[TaskLine]) -> Activity | None:
    doing: set[Activity] = {line.status for line in lines if line.status not in ENDED}
    doing |= {"streaming" for line in lines if line.streaming and line.status is Status.RUNNING}
    return next((activity for activity in _PRIORITY if activity in doing), None)


def _find(task: TaskRecord) -> list[Incident]:
    found = [
        Incident(name_task(task), attempt.last_error, attempt.last_seen_at, attempt.run_id)
        for attempt in task.attempts
        if attempt.last_error is not None
    ]
    if task.last_error is not None:
        found.append(Incident(name_task(task), task.last_error, task.status_at))
    return found
