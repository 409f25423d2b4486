"""Read models of one task: its line in a list, and its objects: task, run, step, job and todo.

A line has everything by reference, and its status as far as it is known (SNAP-15, ST-19). The record is the fold of the
facts, which may be outdated: if a live run has not responded for longer than ``QUIET_MS``, or the stream has an
event that this version cannot read, the status is *stale*, and ``recorded`` is the last known one.

The objects are separate, and present only if the task has them (OBJ-6).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import field
from typing import Final

from passerelle.core.events import Event
from passerelle.core.facts import ErrorDetail
from passerelle.core.ids import TaskId, expose
from passerelle.core.job.item_name import find_item
from passerelle.core.read_models.mark import FreshnessMark, blocked, not_applicable, stale, unknown
from passerelle.core.task.record import ArtifactRef, Attempt, Edge, Progress, TaskRecord, TaskScope
from passerelle.core.task.status import ENDED, WAITING, WORKING, Delivery, Status, Visibility
from passerelle.core.wire.json import JsonObject
from passerelle.core.wire.record import change, record
from passerelle.core.wire.times import parse_ms

QUIET_MS: Final = 60_000


@record
class TaskLine:
    """A compact task. ``sequence`` is that of the last event in it."""

    task_id: str
    session_id: str
    sequence: int
    title: str
    kind: str
    family: str
    visibility: Visibility
    status: Status
    recorded: Status
    status_at: str
    owner: str
    requested_by: str
    scope: TaskScope
    priority: int
    created_at: str
    updated_at: str
    progress: Progress
    thread_id: str | None = None
    turn_id: str | None = None
    assignee: str | None = None
    started_at: str | None = None
    ended_at: str | None = None
    current_run_id: str | None = None
    attempts: int = 0
    parent_task_id: str | None = None
    root_task_id: str | None = None
    relationships: tuple[Edge, ...] = ()
    artifacts: tuple[ArtifactRef, ...] = ()
    evidence_refs: tuple[str, ...] = ()
    open_actions: tuple[str, ...] = ()
    delivery: dict[str, Delivery] = field(default_factory=dict[str, Delivery])
    duration_ms: int | None = None
    """From the first run to the end."""
    streaming: bool = False
    """Whether an artifact is being streamed: it has chunks, but not the last one."""
    status_reason: str | None = None
    last_error: ErrorDetail | None = None
    archive: str | None = None
    """The ref of its session, once archived: then ``recorded`` is its final status."""
    rolled_back: str | None = None
    """The boundary of the rollback that removed it from its thread; None: not rolled back."""
    marks: dict[str, FreshnessMark] = field(default_factory=dict[str, FreshnessMark])


def name_task(task: TaskRecord) -> str:
    """The facade id of a task."""
    return expose(TaskId(task.task_id), task.exposure)


def show_task(task: TaskRecord, now_ms: int, archive: str | None = None) -> TaskLine:
    """The line of a record at ``now_ms``; ``archive`` is the ref if it is archived (ST-18)."""
    marks = _mark(task)
    doubt = doubt_status(task, now_ms)
    if doubt is not None:
        marks["status"] = doubt
    return TaskLine(
        task_id=name_task(task),
        session_id=task.session_id,
        sequence=task.last,
        title=task.title,
        kind=task.kind,
        family=task.family,
        visibility=task.visibility,
        status=_choose_status(task, doubt, archive),
        recorded=task.status,
        status_at=task.status_at,
        owner=task.owner,
        requested_by=task.requested_by,
        scope=task.scope,
        priority=task.priority,
        created_at=task.created_at,
        updated_at=task.updated_at,
        progress=change(show_progress(task), counters=count(task)),
        thread_id=task.thread_id,
        turn_id=task.turn_id,
        assignee=task.assignee,
        started_at=task.started_at,
        ended_at=task.ended_at,
        current_run_id=task.current_run_id,
        attempts=len(task.attempts),
        parent_task_id=task.parent_task_id,
        root_task_id=task.root_task_id,
        relationships=task.relationships,
        artifacts=task.artifacts,
        evidence_refs=task.evidence_refs,
        open_actions=task.open_actions,
        delivery=task.delivery,
        duration_ms=measure(task),
        streaming=is_streaming(task),
        status_reason=task.status_reason,
        last_error=task.last_error,
        archive=archive,
        rolled_back=task.rolled_back,
        marks=marks,
    )


def _choose_status(task: TaskRecord, doubt: FreshnessMark | None, archive: str | None) -> Status:
    if archive is not None:
        return Status.ARCHIVED
    return Status.STALE if doubt is not None and task.status not in ENDED else task.status


def show_progress(task: TaskRecord) -> Progress:
    """The progress of a task; a completed task has no phase."""
    is_over = task.status is Status.COMPLETED
    return change(task.progress, phase=None) if is_over else task.progress


def show_record(task: TaskRecord) -> TaskRecord:
    """The record as readers get it."""
    return change(task, progress=show_progress(task))


def count(task: TaskRecord) -> dict[str, int]:
    """Reported counters, overridden by those counted from facts (PO-1, PO-4)."""
    below = [e for e in task.relationships if e.kind == "child" and e.status != "removed"]
    return {
        **task.progress.counters,
        "artifacts": task.artifact_count,
        "attempts": len(task.attempts),
        "childTasks": sum(edge.items is None for edge in below),
        "inputs": len(task.inputs),
        "jobItems": sum(edge.items or 0 for edge in below),
    }


def measure(task: TaskRecord) -> int | None:
    """Milliseconds from the first run to the end; None before the end, or without a run (MK-31)."""
    if task.started_at is None or task.ended_at is None:
        return None
    return max(0, parse_ms(task.ended_at) - parse_ms(task.started_at))


def is_streaming(task: TaskRecord) -> bool:
    """Whether chunks of an artifact are arriving: a state of the live run, not a task status (CF-9)."""
    return task.run is not None and task.run.streaming is True


def doubt_status(task: TaskRecord, now_ms: int) -> FreshnessMark | None:
    """Why the recorded status may be outdated; None if there is no doubt."""
    if task.stale_from is not None:
        return stale(f"event {task.stale_from} is of a class that this version cannot read")
    run = task.run
    if run is None or task.status not in WORKING:
        return None
    silent_ms = now_ms - parse_ms(run.last_seen_at)
    if silent_ms <= QUIET_MS:
        return None
    return stale(f"no response of {run.worker.peer} for {silent_ms // 1000} s", silent_ms)


def _mark(task: TaskRecord) -> dict[str, FreshnessMark]:
    no_phase = (
        not_applicable("the task is completed")
        if task.status is Status.COMPLETED
        else unknown("no work with a phase has begun")
    )
    no_end = unknown("no end is recorded") if task.status in ENDED else not_applicable("not ended")
    lacking = (
        (
            "progress.percent",
            task.progress.percent,
            unknown("the agent has reported no percentage"),
        ),
        ("progress.step", task.progress.step, unknown("the agent has reported no step")),
        ("progress.phase", show_progress(task).phase, no_phase),
        ("progress.summary", task.progress.summary, unknown("the agent has reported no summary")),
        ("turnId", task.turn_id, not_applicable("no turn was submitted to the task")),
        ("assignee", task.assignee, unknown("no agent has been chosen")),
        ("startedAt", task.started_at, not_applicable("no run has started")),
        ("endedAt", task.ended_at, no_end),
        ("durationMs", measure(task), no_end if task.started_at else not_applicable("no run")),
        ("currentRunId", task.current_run_id, not_applicable("no run is live")),
        ("evidenceRefs", task.evidence_refs or None, not_applicable("nothing was exported")),
        ("delivery", task.delivery or None, unknown("no delivery is recorded")),
    )
    marks = {name: mark for name, member, mark in lacking if member is None}
    if task.status in WAITING:
        reason = task.status_reason or f"the task is {task.status}"
        marks["progress"] = blocked(", ".join([reason, *task.open_actions]))
    return marks


@record
class RunStep:
    """One frame of the agent, or one act of the gateway, in a run; ``classes`` are its event types, in order."""

    step_id: str
    run_id: str | None
    first: int
    last: int
    at: str
    classes: tuple[str, ...]


@record
class TaskObjects:
    """The five objects."""

    task: TaskLine
    runs: tuple[Attempt, ...]
    steps: tuple[RunStep, ...]
    jobs: tuple[str, ...] = ()
    todos: tuple[JsonObject, ...] = ()
    marks: dict[str, FreshnessMark] = field(default_factory=dict[str, FreshnessMark])


def show_objects(
    task: TaskRecord, events: Iterable[Event], now_ms: int, archive: str | None = None
) -> TaskObjects:
    """The five objects of a record; ``events`` are the readable ones of its task."""
    steps: dict[str, list[Event]] = {}
    for event in events:
        scope = event.fact.scope
        if scope.step_id is not None and scope.task_id == task.task_id:
            steps.setdefault(scope.step_id, []).append(event)
    item = find_item(task)
    jobs = (*(() if item is None else (item[0],)), *task.jobs)
    marks: dict[str, FreshnessMark] = {}
    if not jobs:
        marks["jobs"] = not_applicable("the task is not part of a job")
    if not task.progress.checklist:
        marks["todos"] = not_applicable("the agent keeps no checklist")
    return TaskObjects(
        task=show_task(task, now_ms, archive),
        runs=task.attempts,
        steps=tuple(_show(step_id, facts) for step_id, facts in steps.items()),
        jobs=jobs,
        todos=task.progress.checklist,
        marks=marks,
    )


def _show(step_id: str, facts: list[Event]) -> RunStep:
    first, last = facts[0], facts[-1]
    return RunStep(
        step_id=step_id,
        run_id=first.fact.scope.run_id,
        first=first.sequence,
        last=last.sequence,
        at=first.timestamp,
        classes=tuple(event.type for event in facts),
    )
