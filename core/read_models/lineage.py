"""The task that a follow-up goes on from, where its message refers to none (LT-13).

A message to a context that it has spoken in before makes a task of its own, and most callers say nothing of the tasks
before it. So the edge is no fact: it follows from those that stand, and readers see it like any other. The source is
the newest task of the context that had ended when the message came; what was under way then is no source. A message
that refers to tasks says itself what it goes on from. The thread that runs a task is an edge of the same kind.
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
    """Whether a task came with a message of its own that says nothing of a task before it."""
    return (
        task.thread_id is not None
        and task.turn_id is not None
        and task.parent_task_id is None
        and task.family in {"delegation", "message"}
        and not any(edge.kind == SOURCE for edge in task.relationships)
    )


def find_source(task: TaskRecord, earlier: Iterable[TaskRecord]) -> TaskRecord | None:
    """The task that ``task`` goes on from, among others of its session, the newest first; None: there is none."""
    for one in earlier:
        stands = one.rolled_back is None or task.rolled_back is not None
        if one.thread_id == task.thread_id and stands and _had_ended(one, task.created_at):
            return one
    return None


def _had_ended(task: TaskRecord, at: str) -> bool:
    """Whether callers had seen its end by then; one that was tried again since had ended before."""
    if task.exposure > 1:
        return task.created_at < at
    return task.ended_at is not None and task.ended_at <= at


def link_source(task: TaskRecord, source: TaskRecord | None) -> TaskRecord:
    """The task as readers get it, with the edge to its source."""
    if source is None:
        return task
    name, at = source.task_id, task.created_at
    edge = Edge(f"source:{name}", SOURCE, name, "satisfied", at, at, REASON)
    return change(task, relationships=(*task.relationships, edge))


def link_thread(task: TaskRecord) -> TaskRecord:
    """The task with the edge to the thread that runs it from its start on, unless it was said to be another (GR-6)."""
    thread, at = task.thread_id, task.started_at
    if thread is None or at is None or any(edge.kind == THREAD for edge in task.relationships):
        return task
    edge = Edge(f"{THREAD}:{thread}", THREAD, thread, "open", at, at)
    return change(task, relationships=(*task.relationships, edge))


def link_sources(tasks: Sequence[TaskRecord]) -> list[TaskRecord]:
    """The same for all tasks of a session, in their order."""
    newest = sorted(tasks, key=lambda task: task.task_id, reverse=True)
    places = {task.task_id: place for place, task in enumerate(newest)}
    return [
        link_source(task, find_source(task, newest[places[task.task_id] + 1 :]))
        if has_implicit_source(task)
        else task
        for task in tasks
    ]
