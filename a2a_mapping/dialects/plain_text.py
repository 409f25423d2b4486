"""The last dialect: text only. It can be replied to, or the task can be cancelled.

There is no Approve here. Only the agent knows whether "yes" means consent, and an agent that needs consent must ask in
a form that names the subject. An agent that asks for an authorization in text gets the same two options: a secret must
never be in a reply.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from passerelle.a2a_mapping.dialects.pause import (
    AgentPause,
    DecidedQuestion,
    identify_occurrence,
    make_reply,
)
from passerelle.a2a_mapping.states import AUTH_REQUIRED
from passerelle.core.approval.prompt import PeerPrompt
from passerelle.core.payloads.approval import Option
from passerelle.core.wire.json import JsonObject

NAME: Final = "plain_text"
REPLY: Final = Option("reply", "Reply", "answer")
CANCEL: Final = Option("cancel", "Cancel the task", "cancel")
NO_CONSENT: Final = "Not approved: no consent was given. Do not retry, and do not work around this."


def detect(pause: AgentPause) -> list[PeerPrompt]:
    """One question, whatever the pause contains."""
    authorizes = pause.native_status == AUTH_REQUIRED
    return [
        PeerPrompt(
            dialect=NAME,
            occurrence=identify_occurrence(pause, None),
            native_status=pause.native_status,
            kind="auth" if authorizes else "input",
            action_type="credential" if authorizes else "free_input",
            options=(REPLY, CANCEL),
            message_id=pause.message_id,
            text=pause.text or None,
        )
    ]


def encode(replies: Sequence[DecidedQuestion], task: str, context: str) -> JsonObject | None:
    """The reply as text; None if text could be mistaken for an answer: cancel the task."""
    reply = replies[0]
    if reply.answer.option_id == CANCEL.option_id:
        return None
    text = reply.answer.text if reply.answer.allowed else NO_CONSENT
    if not text:
        return None
    return make_reply((task, context), [reply.decision_id], [{"text": text}])
