"""The attempts of a task: the live one and the earlier ones, each with input and output (SNAP-17)."""

from __future__ import annotations

from dataclasses import field

from passerelle.core.facts import Ref
from passerelle.core.read_models.mark import FreshnessMark, not_applicable, unknown
from passerelle.core.read_models.task import doubt_status, name_task
from passerelle.core.task.record import Attempt, TaskRecord
from passerelle.core.wire.record import change, record


@record
class AttemptHistory:
    """All attempts, oldest first. ``active`` is the live run."""

    task_id: str
    sequence: int
    attempts: tuple[Attempt, ...]
    active: str | None = None
    marks: dict[str, FreshnessMark] = field(default_factory=dict[str, FreshnessMark])


def list_attempts(task: TaskRecord, now_ms: int) -> AttemptHistory:
    """The attempts of a record; missing members of an attempt are marked under ``<run id>.<member>``."""
    marks: dict[str, FreshnessMark] = {}
    doubt = doubt_status(task, now_ms)
    if not task.attempts:
        marks["attempts"] = not_applicable("no run has started")
    for attempt in task.attempts:
        marks |= {f"{attempt.run_id}.{name}": mark for name, mark in _mark(attempt).items()}
    if task.current_run_id is None:
        marks["active"] = not_applicable("no run is live")
    elif doubt is not None:
        marks[f"{task.current_run_id}.status"] = doubt
    shown = tuple(_add_checkpoint(task, attempt) for attempt in task.attempts)
    return AttemptHistory(name_task(task), task.last, shown, task.current_run_id, marks)


def _add_checkpoint(task: TaskRecord, attempt: Attempt) -> Attempt:
    """Adds the checkpoint of a live run: its last event that callers have seen. A takeover continues there.

    The content of the task is folded up to it, and later output is requested from the agent (ATT-7).
    """
    if attempt.run_id != task.current_run_id or attempt.steps == 0:
        return attempt
    return change(attempt, checkpoint_refs=(Ref(sequence=task.shown_to or task.last),))


def _mark(attempt: Attempt) -> dict[str, FreshnessMark]:
    marks: dict[str, FreshnessMark] = {}
    if attempt.ended_at is None:
        marks["endedAt"] = not_applicable("the run has not ended")
    if attempt.remote_task_id is None:
        marks["remoteTaskId"] = unknown("the agent has named no task")
    if attempt.native_status is None:
        marks["nativeStatus"] = unknown("the agent has reported no state")
    if not attempt.output_refs:
        marks["outputRefs"] = not_applicable("the run has recorded no output")
    if attempt.ended_at is not None:
        marks["checkpointRefs"] = not_applicable("the run has ended: it cannot be continued")
    elif attempt.steps == 0:
        marks["checkpointRefs"] = not_applicable("the agent has sent nothing yet")
    return marks
