"""AgentStack: an approval in the metadata of the status message, under the address of its extension.

It names no id and no expiry, so the question is known by its message, and the answer is bound to the task alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from passerelle.a2a_mapping.dialects.gate import ask_leave
from passerelle.a2a_mapping.dialects.pause import Pause, Reply, make_reply
from passerelle.a2a_mapping.members import object_at, text_at
from passerelle.core.json import JsonObject
from passerelle.core.prompt import PeerPrompt

NAME: Final = "agentstack"
URI: Final = "https://a2a-extensions.agentstack.beeai.dev/interactions/approval/v1"


def detect(pause: Pause) -> list[PeerPrompt]:
    """The one approval of the status message, if it asks for one."""
    form = object_at(object_at(pause.message, "metadata"), URI)
    if not form:
        return []
    words = (text_at(form, "title"), text_at(form, "description"))
    text = "\n".join(word for word in words if word)
    tool = text_at(form, "name") or text_at(form, "action")
    return [ask_leave(NAME, pause, None, tool, form.get("input"), text)]


def encode(replies: Sequence[Reply], task: str, context: str) -> JsonObject | None:
    """A message without parts; the decision stands in its metadata."""
    reply = replies[0]
    message = make_reply((task, context), [reply.decision_id], [])
    decision = "approve" if reply.answer.allowed else "reject"
    return {**message, "metadata": {URI: {"decision": decision}}}
