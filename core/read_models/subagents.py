"""The contexts that agents opened for a task, as its children (SNAP-12, PRS-6)."""

from __future__ import annotations

from dataclasses import field
from typing import Literal, TypeAlias

from passerelle.core.read_models.mark import FreshnessMark, not_applicable, unknown
from passerelle.core.read_models.task import name_task
from passerelle.core.task.record import Attempt, TaskRecord
from passerelle.core.task.status import Status
from passerelle.core.wire.record import record

Recoverability: TypeAlias = Literal["recoverable", "message_only"]


@record
class Subagent:
    """The agent's side of a run. ``recoverable``: it named a task, so it can be asked again after anything."""

    run_id: str
    peer: str
    status: Status
    recoverability: Recoverability | None
    thread_id: str | None = None
    remote_task_id: str | None = None
    remote_context_id: str | None = None
    marks: dict[str, FreshnessMark] = field(default_factory=dict[str, FreshnessMark])


@record
class SubagentSummary:
    """The children of a task."""

    task_id: str
    sequence: int
    subagents: tuple[Subagent, ...]
    children: tuple[str, ...] = ()
    """Tasks that were delegated from this one."""
    marks: dict[str, FreshnessMark] = field(default_factory=dict[str, FreshnessMark])


def list_subagents(task: TaskRecord) -> SubagentSummary:
    """The children of a record."""
    children = [
        edge.target
        for edge in task.relationships
        if edge.kind == "child" and edge.status != "removed"
    ]
    return SubagentSummary(
        task_id=name_task(task),
        sequence=task.last,
        subagents=tuple(_show(task, attempt) for attempt in task.attempts),
        children=tuple(children),
        marks={"jobs": not_applicable("the task is no part of a job")},
    )


def _show(task: TaskRecord, attempt: Attempt) -> Subagent:
    marks: dict[str, FreshnessMark] = {}
    recoverability = _judge(task, attempt)
    if recoverability is None:
        marks["recoverability"] = unknown("the agent has not answered yet")
    if attempt.remote_context_id is None:
        marks["remoteContextId"] = unknown("no context is known at the agent")
    return Subagent(
        run_id=attempt.run_id,
        peer=attempt.worker.peer,
        status=attempt.status,
        recoverability=recoverability,
        thread_id=task.thread_id,
        remote_task_id=attempt.remote_task_id,
        remote_context_id=attempt.remote_context_id,
        marks=marks,
    )


def _judge(task: TaskRecord, attempt: Attempt) -> Recoverability | None:
    if attempt.remote_task_id is not None:
        return "recoverable"
    return "message_only" if task.family == "message" else None
