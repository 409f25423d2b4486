"""The task that a new child task or job is delegated by: found and checked in one place (GR-1, GR-11)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from passerelle.control.task_graph import check_depth, check_width
from passerelle.core.errors import UnsupportedOperation
from passerelle.core.task.status import ENDED
from passerelle.runtime.records.family import check_above, refuse_below_stopped

if TYPE_CHECKING:
    from passerelle.core.principal import Principal
    from passerelle.core.task.record import TaskRecord
    from passerelle.runtime.records.ownership import Owned, Ownership

FIELD = "parentTaskId"


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
    check_depth(above + 1, FIELD)
    return found


def check_parent(parent: TaskRecord) -> None:
    """Raises UnsupportedOperation if a task takes no child (any more), GraphLimit if it has its maximum."""
    if parent.status in ENDED:
        raise UnsupportedOperation(
            f"the parent task has ended: {parent.status}", status=parent.status
        )
    refuse_below_stopped(parent)
    check_width(parent, "child", FIELD)
