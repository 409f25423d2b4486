"""What is owed while a question is open, and from its end on: its rows in the due set (I9).

Whatever opens or closes a question takes its rows from here, so that no way of doing so can forget one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from passerelle.core.batch import DueChange
from passerelle.permission_bridge.granting import mint_grant

if TYPE_CHECKING:
    from passerelle.core.approval_record import ActionRecord
    from passerelle.core.payloads.approval import Request

EXPIRE: Final = "expire"
RETURN: Final = "return"
MINT: Final = "mint"
ESCALATE: Final = "escalate"


def open_rows(request: Request) -> tuple[DueChange, ...]:
    """The rows of a question that is put to people."""
    action, begins_ms = request.action_id, request.created_ms
    escalations = (
        DueChange(name_escalation(action, step), begins_ms + later.after_ms)
        for step, later in enumerate(request.audience)
        if step > 0
    )
    return (DueChange(f"{EXPIRE}:{action}", request.expires_ms), *escalations)


def close_rows(record: ActionRecord, now_ms: int) -> tuple[DueChange, ...]:
    """Nothing is owed to people any more; the asking side may be owed the answer."""
    rows = [DueChange(row.member, None) for row in open_rows(record.request)]
    owed_ms = now_ms if record.return_state == "owed" else None
    rows.append(DueChange(f"{RETURN}:{record.request.action_id}", owed_ms))
    if mint_grant(record) is not None:
        rows.append(DueChange(f"{MINT}:{record.request.action_id}", now_ms))
    return tuple(rows)


def name_escalation(action_id: str, step: int) -> str:
    """The row of a step of the audience."""
    return f"{ESCALATE}:{action_id}:{step}"
