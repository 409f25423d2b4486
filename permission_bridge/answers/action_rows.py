"""The due rows of an approval request: those of an open request, and those from its end on (I9).

Every path that opens or closes a request takes its rows from here, so that none is forgotten.
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
"""A person with an active device who has not answered for this long gets a push as well."""
STALLED_MS: Final = 300_000
LOOK_AGAIN_MS: Final = 10_000
"""Delay of the delivery row if a local driver delivers the decision: the row covers a crash of that driver."""
_SOON_MS: Final = 100


def open_rows(request: ApprovalRequest) -> tuple[DueChange, ...]:
    """The rows of a newly opened request."""
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
    # Rows after the expiry are never needed.
    return tuple(row for row in rows if (row.at_ms or 0) <= request.expires_ms)


def close_rows(
    record: ActionRecord, now_ms: int, *, is_carried: bool = False
) -> tuple[DueChange, ...]:
    """Removes the rows of an open request, and adds those of a closed one, such as the delivery of its decision.

    ``is_carried``: the local driver is about to be notified, so the delivery row only covers a crash of that driver.
    """
    rows = [DueChange(row.member, None) for row in open_rows(record.request)]
    rows.append(DueChange(f"{CLEAR}:{record.request.action_id}", now_ms))
    delivery_ms = now_ms + (LOOK_AGAIN_MS if is_carried else 0)
    is_owed = record.return_state == "owed"
    rows.append(DueChange(f"{RETURN}:{record.request.action_id}", delivery_ms if is_owed else None))
    if mint_grant(record) is not None:
        rows.append(DueChange(f"{MINT}:{record.request.action_id}", now_ms))
    return tuple(rows)


def name_escalation(action_id: str, step: int) -> str:
    """The row of an audience step."""
    return f"{ESCALATE}:{action_id}:{step}"


def name_notice(action_id: str, attempt: str) -> str:
    """The row of a notification attempt; ``s<step>`` is that of an audience step."""
    return f"{NOTIFY}:{action_id}:{attempt}"
