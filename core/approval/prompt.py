"""The question of an agent in one form for every dialect: dialects make it, the permission bridge reads it."""

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
    """One question in one pause of an agent.

    ``occurrence`` is equal for every observation of the same question (stream, poll, re-attach), so it is opened once.
    ``text`` is the agent's and untrusted. ``native_id`` is the agent's id, used only for the answer. ``lossy``: digits
    were lost in transit, so no option that allows may be offered.
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
    """The decision in the form that every dialect encodes from."""

    allowed: bool
    option_id: str | None = None
    text: str | None = None
    content: JsonObject | None = None
    reason: str | None = None


def read_answer(decision: ApprovalDecision, option: Option | None = None) -> PeerAnswer:
    """The answer for a decision and its ``option``; everything except an allow or an answer is a rejection."""
    sends = option.sends if option is not None else None
    text = decision.content.get("text") if decision.content else None
    return PeerAnswer(
        allowed=decision.outcome in _GIVEN,
        option_id=sends or decision.option_id,
        text=text if isinstance(text, str) else decision.comment,
        content=decision.content,
        reason=None if decision.outcome in _GIVEN else decision.cause,
    )
