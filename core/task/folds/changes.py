"""The changes that all folds of a task use. Absent values are never invented here."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeAlias

from passerelle.core.task.record import TaskRecord
from passerelle.core.task.status import TERMINAL, Status
from passerelle.core.wire.record import change

if TYPE_CHECKING:
    from collections.abc import Callable

    from passerelle.core.events import Event


Folds: TypeAlias = "dict[type, Callable[[TaskRecord, Any, Event], TaskRecord]]"
"""Payload class -> the record after it."""


def set_status(state: TaskRecord, event: Event, status: Status, **changes: Any) -> TaskRecord:  # noqa: ANN401  fields of the record
    """Sets the status and what follows from it: an ended task has nothing open, and no live run."""
    if status is not state.status:
        changes["status_at"] = event.timestamp
    if status in TERMINAL:
        changes.setdefault("ended_at", event.timestamp)
        changes.setdefault("open_actions", ())
        changes |= {"current_run_id": None, "withheld": None, "retry_at": None}
        changes["queued"] = None
    return change(state, status=status, **changes)


def change_attempt(state: TaskRecord, event: Event, **changes: Any) -> TaskRecord:  # noqa: ANN401  fields of the attempt
    """Changes the attempt of the event. Only a frame of the agent is a sign of life."""
    run_id, seen = event.fact.scope.run_id, event.fact.scope.step_id is not None
    if seen:
        changes |= {"last_seen_at": event.timestamp, "silent_since": None}
    attempts = tuple(
        change(attempt, **changes) if attempt.run_id == run_id else attempt
        for attempt in state.attempts
    )
    return change(state, attempts=attempts)


def take_step(state: TaskRecord, event: Event, native: str | None, **changes: Any) -> TaskRecord:  # noqa: ANN401  fields of the attempt
    """One frame of the agent: an answer, so the send before it has arrived."""
    run = state.run
    if run is None or run.run_id != event.fact.scope.run_id or event.fact.scope.step_id is None:
        return state
    if native is not None:
        changes["native_status"] = native
        if native != run.waits_on:
            changes["waits_on"] = None
    changes |= {"pending_message_id": None, "broken_at": None, "stalled_at": None}
    return change_attempt(state, event, steps=run.steps + 1, **changes)


def merge_progress(state: TaskRecord, **changes: Any) -> TaskRecord:  # noqa: ANN401  fields of the progress
    """Merges progress; None leaves a member unchanged."""
    known = {name: value for name, value in changes.items() if value is not None}
    return change(state, progress=change(state.progress, **known)) if known else state


def end_preparation(state: TaskRecord) -> TaskRecord:
    """Clears the preparation step, which is no step of the work."""
    if state.status is not Status.PREPARING:
        return state
    return change(state, progress=change(state.progress, step=None))


def set_run_status(state: TaskRecord, event: Event, status: Status) -> TaskRecord:
    """Sets the status of the live run, if there is one."""
    return change_attempt(state, event, status=status) if state.run else state
