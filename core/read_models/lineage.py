"""Derives the source task of a follow-up whose message refers to no task (LT-13).

A message in an already used context opens its own task, and most callers name no earlier task. So the edge is not a
fact: it is derived from the records, and readers see it like any other edge. The source is the newest task of the
context that had ended when the message was accepted; a task that was still active is no source. A message that refers
to tasks names its sources itself. The thread that runs a task is an edge of the same kind.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from passerelle.core.task.record import Edge, TaskRecord
from passerelle.core.wire.record import change

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

SOURCE: Final = "source_task"
THREAD: Final = "assigned_thread"
REASON: Final = "it came next in the context"


def has_implicit_source(task: TaskRecord) -> bool:
    """Whether a task was opened by its own message, without a reference to an earlier task."""
    return (
        task.thread_id is not None
        and task.turn_id is not None
        and task.parent_task_id is None
        and task.family in {"delegation", "message"}
        and not any(edge.kind == SOURCE for edge in task.relationships)
    )


def find_source(task: TaskRecord, earlier: Iterable[TaskRecord]) -> TaskRecord | None:
    """The source of ``task`` among others of its session, newest first; None: there is none."""
    for one in earlier:
        is_eligible = one.rolled_back is None or task.rolled_back is not None
        if one.thread_id == task.thread_id and is_eligible and _had_ended(one, task.created_at):
            return one
    return None


def _had_ended(task: TaskRecord, at: str) -> bool:
    """Whether callers had seen its end at that time; a task with a later exposure had ended before."""
    if task.exposure > 1:
        return task.created_at < at
    return task.ended_at is not None and task.ended_at <= at


def link_source(task: TaskRecord, source: TaskRecord | None) -> TaskRecord:
    """The task with the edge to its source."""
    if source is None:
        return task
    name, at = source.task_id, task.created_at
    edge = Edge(f"source:{name}", SOURCE, name, "satisfied", at, at, REASON)
    return change(task, relationships=(*task.relationships, edge))


def link_thread(task: TaskRecord) -> TaskRecord:
    """The task with the edge to its thread since its start, unless it was assigned to another thread (GR-6)."""
    thread, at = task.thread_id, task.started_at
    if thread is None or at is None or any(edge.kind == THREAD for edge in task.relationships):
        return task
    edge = Edge(f"{THREAD}:{thread}", THREAD, thread, "open", at, at)
    return change(task, relationships=(*task.relationships, edge))


def link_sources(tasks: Sequence[TaskRecord]) -> list[TaskRecord]:
    """All tasks of a session with the edges to their sources, in order."""
    newest = sorted(tasks, key=lambda task: task.task_id, reverse=True)
    places = {task.task_id: place for place, task in enumerate(newest)}
    return [
        link_source(task, find_source(task, newest[places[task.task_id] + 1 :]))
        if has_implicit_source(task)
        else task
        for task in tasks
    ]
