"""What is owed while a question is open, and from its end on: its rows in the due set (I9).

Whatever opens or closes a question takes its rows from here, so that no way of doing so can forget one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from passerelle.core.batch import DueChange
from passerelle.permission_bridge.grants import mint_grant

if TYPE_CHECKING:
    from passerelle.core.approval.record import ActionRecord
    from passerelle.core.payloads.approval import ApprovalRequest

EXPIRE: Final = "expire"
RETURN: Final = "return"
MINT: Final = "mint"
ESCALATE: Final = "escalate"
NOTIFY: Final = "notify"
STALLED: Final = "stalled"
CLEAR: Final = "clear"

UNSEEN_MS: Final = 20_000
"""Who looks at a device and has not answered for so long gets a push as well."""
STALLED_MS: Final = 300_000
LOOK_AGAIN_MS: Final = 10_000
"""When the row of an answer comes back that its driver carries to the asking side, should the driver break now."""
_SOON_MS: Final = 100


def open_rows(request: ApprovalRequest) -> tuple[DueChange, ...]:
    """The rows of a question that is put to people."""
    action, begins_ms = request.action_id, request.created_ms
    rows = [
        DueChange(f"{EXPIRE}:{action}", request.expires_ms),
        DueChange(name_notice(action, "1"), begins_ms),
        DueChange(name_notice(action, "2"), begins_ms + UNSEEN_MS),
        DueChange(name_notice(action, "3"), (begins_ms + request.expires_ms) // 2),
        DueChange(f"{STALLED}:{action}", begins_ms + STALLED_MS),
    ]
    for step, later in enumerate(request.audience):
        if step > 0:
            at_ms = begins_ms + later.after_ms
            rows.append(DueChange(name_escalation(action, step), at_ms))
            rows.append(DueChange(name_notice(action, f"s{step}"), at_ms + _SOON_MS))
    # What would come after the end need not be owed.
    return tuple(row for row in rows if (row.at_ms or 0) <= request.expires_ms)


def close_rows(
    record: ActionRecord, now_ms: int, *, is_carried: bool = False
) -> tuple[DueChange, ...]:
    """Nothing is owed to people any more; the asking side may be owed the answer.

    ``is_carried``: its driver is about to be told of it here, so that the row is for a driver that breaks.
    """
    rows = [DueChange(row.member, None) for row in open_rows(record.request)]
    rows.append(DueChange(f"{CLEAR}:{record.request.action_id}", now_ms))
    owed_ms = now_ms + (LOOK_AGAIN_MS if is_carried else 0)
    is_owed = record.return_state == "owed"
    rows.append(DueChange(f"{RETURN}:{record.request.action_id}", owed_ms if is_owed else None))
    if mint_grant(record) is not None:
        rows.append(DueChange(f"{MINT}:{record.request.action_id}", now_ms))
    return tuple(rows)


def name_escalation(action_id: str, step: int) -> str:
    """The row of a step of the audience."""
    return f"{ESCALATE}:{action_id}:{step}"


def name_notice(action_id: str, attempt: str) -> str:
    """The row of an attempt to tell people; ``s<step>`` is that of a step of the audience."""
    return f"{NOTIFY}:{action_id}:{attempt}"
