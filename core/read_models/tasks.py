"""Read models of all tasks of a session in one read: sets, counts, graph, attempts, blockers and delivery.

``TaskSnapshot`` has all of them (SNAP-5, SNAP-14…SNAP-19). ``TaskGraph`` has the edges, from which the trees of parents
and of dependencies can be built (SNAP-16, GR-1…GR-10).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import field
from typing import Final

from passerelle.core.read_models.attempts import AttemptHistory, list_attempts
from passerelle.core.read_models.blockers import AskedQuestions, BlockedTask, list_blocked
from passerelle.core.read_models.delivery import DeliveryState, show_delivery
from passerelle.core.read_models.mark import FreshnessMark, unavailable
from passerelle.core.read_models.subagents import list_edges
from passerelle.core.read_models.task import TaskLine, name_task, show_task
from passerelle.core.session.thread import ThreadRecord
from passerelle.core.task.record import Edge, TaskRecord
from passerelle.core.task.status import ENDED, WAITING, Status
from passerelle.core.wire.record import record


@record
class GraphEdge:
    """An edge and its source task. Ids are those of the local records, without an exposure."""

    task_id: str
    edge: Edge


@record
class TaskGraph:
    """The edges of ``nodes``; an edge may lead to another object: another session, an artifact, a context."""

    nodes: tuple[str, ...]
    edges: tuple[GraphEdge, ...]


def draw_graph(
    tasks: Iterable[TaskRecord], threads: Mapping[str, ThreadRecord] | None = None
) -> TaskGraph:
    """The graph of the tasks, in order. A parent from the creation of a task is an edge like a linked one.

    So is an agent's context that a task was sent into; ``threads`` show whether it was closed since.
    """
    listed, known = list(tasks), threads or {}
    edges = [
        GraphEdge(task.task_id, edge)
        for task in listed
        for edge in _list_edges(task, known.get(task.thread_id or ""))
    ]
    return TaskGraph(tuple(task.task_id for task in listed), tuple(edges))


def _list_edges(task: TaskRecord, thread: ThreadRecord | None) -> list[Edge]:
    parent = task.parent_task_id
    known = {(edge.kind, edge.target) for edge in task.relationships}
    derived = list_edges(task, thread)
    if parent is None or ("parent", parent) in known:
        return [*task.relationships, *derived]
    born = Edge(parent, "parent", parent, "open", task.created_at, task.created_at)
    return [born, *task.relationships, *derived]


RECENT: Final = 20


@record
class TaskSummary:
    """Task counts. ``active`` tasks are in progress; ``failed`` are among the ``terminal``."""

    active: int
    waiting: int
    lost: int
    terminal: int
    failed: int
    recent: tuple[str, ...] = ()
    """The tasks that ended last, newest first."""


@record
class TaskSnapshot:
    """Each task is in exactly one of ``active``, ``waiting``, ``lost``, ``terminal``; ``failed`` are among the last."""

    session_id: str
    sequence: int
    summary: TaskSummary
    active: tuple[str, ...]
    waiting: tuple[str, ...]
    lost: tuple[str, ...]
    terminal: tuple[str, ...]
    failed: tuple[str, ...]
    tasks: tuple[TaskLine, ...]
    graph: TaskGraph
    attempts: tuple[AttemptHistory, ...]
    blocked: tuple[BlockedTask, ...]
    delivery: tuple[DeliveryState, ...]
    marks: dict[str, FreshnessMark] = field(default_factory=dict[str, FreshnessMark])


def show_tasks(
    session_id: str,
    sequence: int,
    tasks: Sequence[TaskRecord],
    now_ms: int,
    left_out: int = 0,
    archive: str | None = None,
    threads: Mapping[str, ThreadRecord] | None = None,
    questions: AskedQuestions | None = None,
) -> TaskSnapshot:
    """The snapshot of a session's tasks, newest status first. ``left_out`` older tasks were not read.

    ``threads`` and ``questions`` (open approvals) are those of the tasks that were read. ``archive`` is the ref of the
    session if that is archived: then all its tasks are.
    """
    ordered = sorted(tasks, key=lambda task: (task.status_at, task.task_id), reverse=True)
    waiting = [task for task in ordered if task.status in WAITING]
    lost = [task for task in ordered if task.status is Status.LOST]
    terminal = [task for task in ordered if task.status in ENDED]
    failed = [task for task in terminal if task.status is not Status.COMPLETED and _failed(task)]
    others = {task.task_id for task in (*waiting, *lost, *terminal)}
    active = [task for task in ordered if task.task_id not in others]
    marks: dict[str, FreshnessMark] = {}
    if left_out:
        older = unavailable(f"{left_out} older tasks were not read")
        marks = dict.fromkeys(("summary", "terminal", "failed", "tasks"), older)
    return TaskSnapshot(
        session_id=session_id,
        sequence=sequence,
        summary=TaskSummary(
            active=len(active),
            waiting=len(waiting),
            lost=len(lost),
            terminal=len(terminal),
            failed=len(failed),
            recent=_name_all(terminal[:RECENT]),
        ),
        active=_name_all(active),
        waiting=_name_all(waiting),
        lost=_name_all(lost),
        terminal=_name_all(terminal),
        failed=_name_all(failed),
        tasks=tuple(show_task(task, now_ms, archive) for task in ordered),
        graph=draw_graph(ordered, threads),
        attempts=tuple(list_attempts(task, now_ms) for task in ordered),
        blocked=list_blocked(ordered, questions or {}),
        delivery=tuple(map(show_delivery, ordered)),
        marks=marks,
    )


def _failed(task: TaskRecord) -> bool:
    """An archived task keeps its final error."""
    return task.status in {Status.FAILED, Status.TIMED_OUT} or (
        task.status is Status.ARCHIVED and task.last_error is not None
    )


def _name_all(tasks: Sequence[TaskRecord]) -> tuple[str, ...]:
    return tuple(map(name_task, tasks))
