"""What a peer asks, in one form for every dialect: made by the dialects, read by the permission bridge."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from passerelle.core.payloads.approval import ActionKind, ActionType, Option, Risk
from passerelle.core.wire.json import JsonObject
from passerelle.core.wire.record import record

if TYPE_CHECKING:
    from passerelle.core.payloads.approval import ApprovalDecision


_GIVEN: Final = frozenset({"allowed", "answered", "answered_by_caller"})


@record
class PeerPrompt:
    """One question in one pause of a peer.

    ``occurrence`` is equal for every sight of the same question (stream, poll, re-attach), so that it is
    opened once. ``text`` is the peer's, untrusted. ``native_id`` is the peer's id, used for nothing but the answer.
    ``lossy`` says that digits were lost on the way, so no option that allows may be offered.
    """

    dialect: str
    occurrence: str
    native_status: str
    kind: ActionKind
    action_type: ActionType
    options: tuple[Option, ...]
    native_id: str | None = None
    message_id: str | None = None
    text: str | None = None
    subject: JsonObject | None = None
    response_schema: JsonObject | None = None
    risk: Risk | None = None
    destructive: bool = False
    lossy: bool = False
    expires_ms: int | None = None
    said_at: str | None = None


@record
class PeerAnswer:
    """What goes back: the decision in the words that every dialect can encode from."""

    allowed: bool
    option_id: str | None = None
    text: str | None = None
    content: JsonObject | None = None
    reason: str | None = None


def read_answer(decision: ApprovalDecision, option: Option | None = None) -> PeerAnswer:
    """The answer that a decision for ``option`` stands for; everything but a yes or an answer is a no."""
    sends = option.sends if option is not None else None
    text = decision.content.get("text") if decision.content else None
    return PeerAnswer(
        allowed=decision.outcome in _GIVEN,
        option_id=sends or decision.option_id,
        text=text if isinstance(text, str) else decision.comment,
        content=decision.content,
        reason=None if decision.outcome in _GIVEN else decision.cause,
    )
