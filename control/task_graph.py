"""The limits of the task graph: no cycle, and bounded depth and number of edges per task (GR-1, GR-2).

An edge is checked before it is created, and again afterwards: of two concurrent edges that would close a cycle at least
one is detected and removed. The parent of a new child task or job is found and checked here as well (GR-11).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from passerelle.core.errors import GraphLimit, UnsupportedOperation
from passerelle.core.frozen import frozen
from passerelle.core.ids import read_shard
from passerelle.core.task.record import TaskRecord
from passerelle.core.task.status import ENDED
from passerelle.runtime.records.family import check_above, refuse_below_stopped

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from passerelle.core.facts import EdgeKind
    from passerelle.core.principal import Principal
    from passerelle.core.task.record import Edge
    from passerelle.runtime.records.ownership import Owned, Ownership
    from passerelle.runtime.records.writes import Writes


MOST_ABOVE: Final = 32
"""Tasks between a task and the root of its tree, the root included."""
MOST_EDGES: Final = 1_000
"""Edges of a kind from one task to other tasks, removed ones excluded."""
MOST_LOOKED_AT: Final = 4_096
"""Tasks that are read to check one edge."""
PARENT_FIELD: Final = "parentTaskId"


@frozen
class GraphReach:
    """The tasks reached along edges of a kind, and the number of levels."""

    tasks: frozenset[str]
    levels: int


def check_width(task: TaskRecord, kind: EdgeKind, field: str) -> None:
    """Raises GraphLimit if a task has its maximum of edges of a kind."""
    if (
        sum(edge.kind == kind and edge.status != "removed" for edge in task.relationships)
        >= MOST_EDGES
    ):
        raise GraphLimit(
            field, "width", f"a task has at most {MOST_EDGES} edges of the kind {kind}"
        )


def check_depth(above: int, field: str) -> None:
    """Raises GraphLimit if a task would be too deep."""
    if above > MOST_ABOVE:
        raise GraphLimit(field, "depth", f"a task has at most {MOST_ABOVE} tasks above it")


@frozen
class GraphBounds:
    """Checks new edges."""

    writes: Writes

    async def check(self, near: TaskRecord, far: TaskRecord, kind: EdgeKind) -> None:
        """Raises GraphLimit if an edge from ``near`` to ``far`` is not allowed."""
        match kind:
            case "blocks":
                await self._check_wait(far, near)
            case "blocked_by":
                await self._check_wait(near, far)
            case "child":
                await self._check_tree(near, far)
            case "parent":
                await self._check_tree(far, near)
            case _:
                return

    async def _check_wait(self, waiter: TaskRecord, blocker: TaskRecord) -> None:
        """No task waits for itself through others."""
        found = await self._walk(blocker, lambda task: _targets(task, _is_wait))
        if waiter.task_id in found.tasks:
            raise GraphLimit("target", "cycle", "the tasks would wait for each other")

    async def _check_tree(self, parent: TaskRecord, child: TaskRecord) -> None:
        """No task is its own ancestor, or too deep."""
        below = await self._walk(child, lambda task: _targets(task, _is_child))
        if parent.task_id in below.tasks:
            raise GraphLimit("target", "cycle", "the task would be its own ancestor")
        above = await self._walk(parent, _list_parents)
        check_depth(above.levels + below.levels + 1, "target")

    async def _walk(
        self, start: TaskRecord, follow: Callable[[TaskRecord], Iterable[str]]
    ) -> GraphReach:
        """Walks the stored graph level by level from a task, each task once.

        Raises:
            GraphLimit: there are more tasks than may be read.
        """
        depth = {start.task_id: 0}
        level, levels = await self.writes.read_all(TaskRecord, [start.task_id]), 0
        while level:
            names = dict.fromkeys(name for task in level.values() for name in follow(task))
            fresh = [name for name in names if name not in depth and read_shard(name) is not None]
            depth |= dict.fromkeys(fresh, levels + 1)
            if len(depth) > MOST_LOOKED_AT:
                raise GraphLimit(
                    "target", "size", f"is connected to more than {MOST_LOOKED_AT} tasks"
                )
            level = await self.writes.read_all(TaskRecord, fresh)
            levels += bool(level)
        return GraphReach(frozenset(depth) - {start.task_id}, levels)


def _targets(task: TaskRecord, follows: Callable[[Edge], bool]) -> Iterable[str]:
    return (edge.target for edge in task.relationships if follows(edge))


async def find_parent(ownership: Ownership, principal: Principal, task_id: str) -> Owned:
    """A task of the caller that may get a child now.

    Raises:
        NotFound: no such task of the caller.
        UnsupportedOperation: it has ended, or a task above it is being cancelled.
        GraphLimit: it is too deep, or has its maximum of children.
    """
    found = await ownership.find(principal, task_id, None, hidden=True)
    check_parent(found.record)
    above = await check_above(ownership.writes, found.record)
    check_depth(above + 1, PARENT_FIELD)
    return found


def check_parent(parent: TaskRecord) -> None:
    """Raises UnsupportedOperation if a task takes no child (any more), GraphLimit if it has its maximum."""
    if parent.status in ENDED:
        raise UnsupportedOperation(
            f"the parent task has ended: {parent.status}", status=parent.status
        )
    refuse_below_stopped(parent)
    check_width(parent, "child", PARENT_FIELD)


def _is_wait(edge: Edge) -> bool:
    return edge.holds


def _is_child(edge: Edge) -> bool:
    return edge.kind == "child" and edge.status != "removed" and edge.items is None


def _list_parents(task: TaskRecord) -> Iterable[str]:
    parents = [edge for edge in task.relationships if edge.kind == "parent"]
    named = {edge.target for edge in parents if edge.status != "removed"}
    born = task.parent_task_id
    if born is not None and all(edge.target != born for edge in parents):
        named.add(born)
    return named
