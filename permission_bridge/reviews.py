"""The approval request for a task's result: the gateway asks the task's owner whether to accept it.

No agent waits for this decision, so it is delivered to none; the request contains no text of an agent.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

from passerelle.core.approval.guards import TITLE_LIMIT
from passerelle.core.payloads.approval import ApprovalRequest, Option, Origin
from passerelle.core.wire.display import escape_line, escape_text
from passerelle.permission_bridge.views import compute_digest, render_request

if TYPE_CHECKING:
    from passerelle.permission_bridge.policy import Evaluation
    from passerelle.permission_bridge.requests import Asking

LIFETIME_MS: Final = 24 * 3_600_000
ACCEPT: Final = Option("accept", "Accept", "allow_once")
REFUSE: Final = Option("refuse", "Refuse", "reject_once")
_TITLE: Final = "Review what {} brought"


def make_review(
    question: str, asking: Asking, evaluation: Evaluation, now_ms: int
) -> ApprovalRequest:
    """The request, ready to be opened at ``now_ms``. It is rejected on expiry."""
    room = TITLE_LIMIT - len(_TITLE)
    request = ApprovalRequest(
        action_id=asking.action_id,
        kind="confirmation",
        action_type="free_input",
        title=_TITLE.format(escape_line(asking.peer)[:room]),
        description=escape_text(question),
        owner=asking.owner,
        tenant=asking.tenant,
        principal=asking.principal,
        origin=Origin("local", "gateway", asking.peer, asking.card_hash),
        options=(ACCEPT, REFUSE),
        digest="",
        risk=evaluation.risk,
        on_timeout="reject",
        created_ms=now_ms,
        expires_ms=now_ms + LIFETIME_MS,
        policy_version=evaluation.policy_version,
        evaluation_id=evaluation.evaluation_id,
        risk_reasons=evaluation.risk_reasons,
    )
    return replace(request, digest=compute_digest(render_request(request, asking.scope)))
