"""The approval request for a task's result: the gateway asks the task's owner whether to accept it.

No agent waits for this decision, so it is delivered to none; the request contains no text of an agent.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

from passerelle.core.approval.guards import TITLE_LIMIT
from passerelle.core.approval.prompt import PeerPrompt
from passerelle.core.payloads.approval import Option, Origin
from passerelle.core.wire.display import escape_line, escape_text
from passerelle.permission_bridge.requests import make_request
from passerelle.permission_bridge.views import seal_request

if TYPE_CHECKING:
    from passerelle.core.payloads.approval import ApprovalRequest
    from passerelle.permission_bridge.policy import Evaluation
    from passerelle.permission_bridge.requests import Asking

LIFETIME_MS: Final = 24 * 3_600_000
ACCEPT: Final = Option("accept", "Accept", "allow_once")
REFUSE: Final = Option("refuse", "Refuse", "reject_once")
_TITLE: Final = "Review what {} brought"
_PROMPT: Final = PeerPrompt("", "", "", "confirmation", "free_input", (ACCEPT, REFUSE))


def make_review(
    question: str, asking: Asking, evaluation: Evaluation, now_ms: int
) -> ApprovalRequest:
    """The request, ready to be opened at ``now_ms``. It is rejected on expiry."""
    room = TITLE_LIMIT - len(_TITLE)
    request = replace(
        make_request(_PROMPT, asking, evaluation, now_ms),
        title=_TITLE.format(escape_line(asking.peer)[:room]),
        description=escape_text(question),
        origin=Origin("local", "gateway", asking.peer, asking.card_hash),
        expires_ms=now_ms + LIFETIME_MS,
        subject={},
        remote=None,
    )
    return seal_request(request, asking.scope)
