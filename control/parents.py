"""The task that something new is delegated by, a child task or a job: found and judged in one way (GR-1, GR-11)."""

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
    """A task of the caller under which something may begin, as it stands now.

    Raises:
        NotFound: no such task of the caller.
        UnsupportedOperation: it has ended, or a task above it is to stop.
        GraphLimit: it stands too deep, or has as many children as it may.
    """
    found = await ownership.find(principal, task_id, None, hidden=True)
    check_parent(found.record)
    above = await check_above(ownership.writes, found.record)
    check_depth(above + 1, FIELD)
    return found


def check_parent(parent: TaskRecord) -> None:
    """Raises UnsupportedOperation where a task takes no child (any more), GraphLimit where it has as many as it may."""
    if parent.status in ENDED:
        raise UnsupportedOperation(
            f"the parent task has ended: {parent.status}", status=parent.status
        )
    refuse_below_stopped(parent)
    check_width(parent, "child", FIELD)
