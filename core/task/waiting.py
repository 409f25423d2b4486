"""The fact that a task waits for its caller, an approver, or a resource."""

from __future__ import annotations

from typing import Final, Literal, TypeAlias

from passerelle.core.payloads.task import TaskWaiting
from passerelle.core.task.status import Status

WaitKind: TypeAlias = Literal["input", "permission", "resource"]
_KINDS: Final[dict[Status, WaitKind]] = {
    Status.WAITING_PERMISSION: "permission",
    Status.WAITING_RESOURCE: "resource",
}


def make_waiting(
    status: Status, actions: tuple[str, ...], native_status: str | None, reason: str | None = None
) -> TaskWaiting:
    """The wait of a task whose agent asks something. A missing resource is always a credential."""
    return TaskWaiting(
        waiting_for=_KINDS.get(status, "input"),
        status=status,
        reason=reason,
        action_ids=actions,
        native_status=native_status,
        resource="credential" if status is Status.WAITING_RESOURCE else None,
    )
