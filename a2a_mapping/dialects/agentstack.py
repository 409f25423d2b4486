"""AgentStack: an approval in the metadata of the status message, under the URI of its extension.

It has no id and no expiry, so the question is identified by its message, and the answer is bound to the task only.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from passerelle.a2a_mapping.dialects.gate import make_permission_prompt
from passerelle.a2a_mapping.dialects.native import METADATA, NativeAnswer
from passerelle.a2a_mapping.dialects.pause import AgentPause, DecidedQuestion, make_reply
from passerelle.a2a_mapping.extensions import APPROVAL
from passerelle.a2a_mapping.members import object_at, objects_at, text_at
from passerelle.core.approval.prompt import PeerPrompt
from passerelle.core.wire.json import JsonObject

NAME: Final = "agentstack"


def detect(pause: AgentPause) -> list[PeerPrompt]:
    """The one approval of the status message, if there is one."""
    form = object_at(object_at(pause.message, "metadata"), APPROVAL)
    if not form:
        return []
    words = (text_at(form, "title"), text_at(form, "description"))
    text = "\n".join(word for word in words if word)
    tool = text_at(form, "name") or text_at(form, "action")
    return [make_permission_prompt(NAME, pause, None, tool, form.get("input"), text)]


def encode(replies: Sequence[DecidedQuestion], task: str, context: str) -> JsonObject | None:
    """A message without parts; the decision is in its metadata."""
    reply = replies[0]
    message = make_reply((task, context), [reply.decision_id], [])
    decision = "approve" if reply.answer.allowed else "reject"
    return {**message, "metadata": {APPROVAL: {"decision": decision}}}


def read_answers(message: JsonObject) -> list[NativeAnswer]:
    """The decision in the metadata of a caller's message, which names no question."""
    form = object_at(object_at(message, "metadata"), APPROVAL)
    if not form:
        return []
    said = {"approve": True, "reject": False}.get(text_at(form, "decision"))
    return [
        NativeAnswer(
            NAME,
            None,
            said if form.keys() == {"decision"} else None,
            {METADATA: {APPROVAL: form}},
            is_alone=not objects_at(message, "parts"),
        )
    ]
