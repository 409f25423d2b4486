"""The changes that every fold of a task is made of. What a task does not have is never made up here."""

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
    """Another status, with what follows from it: a task that ends has nothing open, and no live run."""
    if status is not state.status:
        changes["status_at"] = event.timestamp
    if status in TERMINAL:
        changes.setdefault("ended_at", event.timestamp)
        changes.setdefault("open_actions", ())
        changes |= {"current_run_id": None, "withheld": None, "retry_at": None}
        changes["queued"] = None
    return change(state, status=status, **changes)


def change_attempt(state: TaskRecord, event: Event, **changes: Any) -> TaskRecord:  # noqa: ANN401  fields of the attempt
    """Changes the attempt that the event is about. Only a frame of the peer is a sign that it lives."""
    run_id, seen = event.fact.scope.run_id, event.fact.scope.step_id is not None
    if seen:
        changes |= {"last_seen_at": event.timestamp, "silent_since": None}
    attempts = tuple(
        change(attempt, **changes) if attempt.run_id == run_id else attempt
        for attempt in state.attempts
    )
    return change(state, attempts=attempts)


def take_step(state: TaskRecord, event: Event, native: str | None, **changes: Any) -> TaskRecord:  # noqa: ANN401  fields of the attempt
    """One frame of the peer: an answer, so the send before it is known to have arrived."""
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
    """What is said of the progress; what is None was not said, and stays."""
    known = {name: value for name, value in changes.items() if value is not None}
    return change(state, progress=change(state.progress, **known)) if known else state


def end_preparation(state: TaskRecord) -> TaskRecord:
    """What was being resolved is no step of the work."""
    if state.status is not Status.PREPARING:
        return state
    return change(state, progress=change(state.progress, step=None))


def set_run_status(state: TaskRecord, event: Event, status: Status) -> TaskRecord:
    """The live run, if there is one, stands as its task does."""
    return change_attempt(state, event, status=status) if state.run else state
