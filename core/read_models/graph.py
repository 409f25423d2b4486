"""Edges of tasks, from which the trees of parents and of dependencies can be made again (SNAP-16, GR-1…GR-10)."""

from __future__ import annotations

from collections.abc import Iterable

from passerelle.core.record import record
from passerelle.core.task_record import Edge, TaskRecord


@record
class GraphEdge:
    """An edge with the task that it leaves from. Ids are those of the local records, without an exposure."""

    task_id: str
    edge: Edge


@record
class TaskGraph:
    """The edges of ``nodes``; an edge may lead to what is no node here: another session, an artifact, a context."""

    nodes: tuple[str, ...]
    edges: tuple[GraphEdge, ...]


def draw_graph(tasks: Iterable[TaskRecord]) -> TaskGraph:
    """The graph of the tasks, in their order. A parent that is known from birth is an edge like one linked later."""
    listed = list(tasks)
    edges = [GraphEdge(task.task_id, edge) for task in listed for edge in _list_edges(task)]
    return TaskGraph(tuple(task.task_id for task in listed), tuple(edges))


def _list_edges(task: TaskRecord) -> list[Edge]:
    parent = task.parent_task_id
    known = {(edge.kind, edge.target) for edge in task.relationships}
    if parent is None or ("parent", parent) in known:
        return [*task.relationships]
    born = Edge(parent, "parent", parent, "open", task.created_at, task.created_at)
    return [born, *task.relationships]
