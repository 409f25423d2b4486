"""CUGA: text, and in the metadata of the status message the id of an action to be confirmed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from passerelle.a2a_mapping.dialects.gate import make_permission_prompt
from passerelle.a2a_mapping.dialects.pause import AgentPause, DecidedQuestion, make_reply
from passerelle.a2a_mapping.members import object_at, text_at
from passerelle.core.approval.prompt import PeerPrompt
from passerelle.core.wire.json import JsonObject

NAME: Final = "cuga"


def detect(pause: AgentPause) -> list[PeerPrompt]:
    """The action in the metadata, if there is one."""
    metadata = object_at(pause.message, "metadata")
    native_id = text_at(metadata, "action_id")
    if not native_id:
        return []
    tool = text_at(metadata, "tool") or text_at(metadata, "action")
    return [make_permission_prompt(NAME, pause, native_id, tool, metadata.get("args"), "")]


def encode(replies: Sequence[DecidedQuestion], task: str, context: str) -> JsonObject | None:
    """The confirmation as a data part and as metadata, since CUGA asks again after unclear text."""
    reply = replies[0]
    form: JsonObject = {"action_id": reply.prompt.native_id, "confirmed": reply.answer.allowed}
    message = make_reply((task, context), [reply.decision_id], [{"data": form}])
    return {**message, "metadata": form}
