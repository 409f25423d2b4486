"""Checks of a command beyond the task's status; each raises a typed error with the reason."""

from __future__ import annotations

from typing import TYPE_CHECKING

from passerelle.core.errors import UnsupportedOperation
from passerelle.core.task.status import TERMINAL, Status

if TYPE_CHECKING:
    from passerelle.core.payloads import task as task_facts
    from passerelle.core.task.record import TaskRecord


def require_run(state: TaskRecord) -> None:
    """Raises UnsupportedOperation if the task has no live run."""
    if state.run is None:
        raise UnsupportedOperation("the task has no live run", status=state.status)


def refuse_second_run(state: TaskRecord) -> None:
    """Raises UnsupportedOperation if an agent has the task, even if the agent reports it as not begun."""
    if state.run is not None:
        raise UnsupportedOperation(
            f"agent {state.run.worker.peer} has the task already", status=state.status
        )


def require_line(state: TaskRecord) -> None:
    """Raises UnsupportedOperation if a run waits for a resource, as opposed to a queued attempt."""
    if state.status is Status.WAITING_RESOURCE and (state.queued is None or state.run is not None):
        missing = "a queued attempt"
        raise UnsupportedOperation(
            "the run of the task waits, and resumes by itself", status=state.status, missing=missing
        )


def require_unblocked(state: TaskRecord) -> None:
    """Refuses an attempt while another task must complete first (GR-2).

    Raises:
        UnsupportedOperation: the task has an open blocker; ``blocker`` names it.
    """
    blocker = state.blocker
    if blocker is not None:
        raise UnsupportedOperation(
            f"the task waits for task {blocker.target}, which has not completed",
            status=state.status,
            blocker=blocker.target,
        )


def require_fresh(state: TaskRecord, retrying: task_facts.TaskRetrying) -> None:
    """Checks the retry of an ended task: it needs an actor, and a new facade id if callers saw the end (LT-12).

    Raises:
        UnsupportedOperation: it may not be retried so.
    """
    if state.status not in TERMINAL:
        return
    if state.rolled_back is not None:
        raise UnsupportedOperation(
            "the task is rolled back",
            status=state.status,
            boundary=state.rolled_back,
        )
    if retrying.actor is None:
        raise UnsupportedOperation(
            "the task has ended", status=state.status, missing="the actor that requests it"
        )
    if state.shown and retrying.exposure != state.exposure + 1:
        raise UnsupportedOperation("callers have seen the task end", status=state.status)
