"""The permissions in a thread, its pending approvals, and the limits in force there (SNAP-9)."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import field

from passerelle.core.approval.record import ActionRecord
from passerelle.core.payloads.approval import ActionKind, Risk
from passerelle.core.read_models.mark import FreshnessMark, not_applicable
from passerelle.core.session.thread import ThreadRecord
from passerelle.core.wire.record import record
from passerelle.core.wire.times import format_ms


@record
class PendingPermission:
    """A pending approval."""

    action_id: str
    kind: ActionKind
    title: str
    risk: Risk
    asked_by: str
    expires_at: str
    task_id: str | None = None
    peer: str | None = None


@record
class PermissionSummary:
    """``mode`` and ``policy_version`` are the current ones; an approval keeps the version of its opening.

    The gateway sandboxes no local worker yet, so there is neither a sandbox nor a violation.
    """

    thread_id: str
    session_id: str
    sequence: int
    mode: str
    policy_version: str
    pending: tuple[PendingPermission, ...]
    grants: int
    """Number of live standing approvals of its owner."""
    bypass_until: str | None = None
    sandbox: str | None = None
    violations: tuple[str, ...] = ()
    marks: dict[str, FreshnessMark] = field(default_factory=dict[str, FreshnessMark])


@record
class PermissionState:
    """The policy state of a thread's owner now."""

    mode: str
    policy_version: str
    grants: int
    bypass_until: str | None = None


def show_permissions(
    thread: ThreadRecord, sequence: int, state: PermissionState, actions: Iterable[ActionRecord]
) -> PermissionSummary:
    """The summary of a thread; ``actions`` are the open approvals of its tasks."""
    bounds = not_applicable("agents run elsewhere, and no worker is bounded here")
    return PermissionSummary(
        thread_id=thread.thread_id,
        session_id=thread.session_id,
        sequence=sequence,
        mode=state.mode,
        policy_version=state.policy_version,
        pending=tuple(_show(action) for action in actions if action.is_open),
        grants=state.grants,
        bypass_until=state.bypass_until,
        marks={"sandbox": bounds, "violations": bounds},
    )


def _show(action: ActionRecord) -> PendingPermission:
    request = action.request
    return PendingPermission(
        action_id=request.action_id,
        kind=request.kind,
        title=request.title,
        risk=request.risk,
        asked_by=request.origin.asked_by,
        expires_at=format_ms(request.expires_ms),
        task_id=action.scope.task_id,
        peer=request.origin.peer,
    )
