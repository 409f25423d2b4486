"""kagent's Python agents: calls to confirm as data parts, answered by one decision.

A question is a data part of an ``adk_request_confirmation`` with ``metadata.kagent_type = function_call``. The agent
reads no function response: its answer is a data part with ``decision_type``, ``approve`` or ``reject`` for all calls of
the pause, or ``batch`` with a decision for each. A call that a batch does not name counts as approved, and an agent
that waits for another one names that one's calls only in part. So a batch is sent for direct calls alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from passerelle.a2a_mapping.dialects.adk import CONFIRMATION
from passerelle.a2a_mapping.dialects.gate import make_permission_prompt
from passerelle.a2a_mapping.dialects.kagent import ASK_USER, list_answers, make_question
from passerelle.a2a_mapping.dialects.pause import (
    AgentPause,
    DecidedQuestion,
    make_reply,
    require_all,
)
from passerelle.a2a_mapping.dialects.plain_text import NO_CONSENT
from passerelle.a2a_mapping.members import object_at, objects_at, text_at
from passerelle.core.approval.prompt import PeerPrompt
from passerelle.core.approval.response_schema import PROPERTY_LIMIT
from passerelle.core.wire.json import JsonObject

NAME: Final = "kagent_parts"
_TYPE: Final = "kagent_type"
_WAITS: Final = "kagent_is_long_running"
_NESTED: Final = "nested "
"""Prefix of the id of a call that another agent wants to make; the agent's ids have no blank."""


def detect(pause: AgentPause) -> list[PeerPrompt]:
    """The waiting calls of the status message; empty if one of them cannot be answered."""
    waiting = [
        object_at(part, "data")
        for part in objects_at(pause.message, "parts")
        if text_at(object_at(part, "metadata"), _TYPE) == "function_call"
        and object_at(part, "metadata").get(_WAITS) is True
    ]
    calls = [call for one in waiting for call in _list_calls(one)]
    if len(calls) == 1 and text_at(calls[0][1], "name") == ASK_USER:
        return require_all([_read_questions(pause, *calls[0])])
    return require_all([_read_call(pause, *call) for call in calls])


def encode(replies: Sequence[DecidedQuestion], task: str, context: str) -> JsonObject | None:
    """One data part; None if it cannot say what was decided: cancel the task."""
    form = _decide(replies)
    if form is None:
        return None
    decided = [reply.decision_id for reply in replies]
    return make_reply((task, context), decided, [{"data": form}])


def _decide(replies: Sequence[DecidedQuestion]) -> JsonObject | None:
    if replies[0].prompt.kind != "permission":
        answers = list_answers(replies[0])
        if answers is None:
            return None
        return {"decision_type": "approve", "ask_user_answers": answers}
    reasons = {
        reply.prompt.native_id or "": reply.answer.text or NO_CONSENT
        for reply in replies
        if not reply.answer.allowed
    }
    if not reasons:
        return {"decision_type": "approve"}
    if len(reasons) == len(replies) and len({*reasons.values()}) == 1:
        return {"decision_type": "reject", "rejection_reason": next(iter(reasons.values()))}
    ids = [reply.prompt.native_id or "" for reply in replies]
    if any(one.startswith(_NESTED) for one in ids):
        return None
    return {
        "decision_type": "batch",
        "decisions": {one: "reject" if one in reasons else "approve" for one in ids},
        "rejection_reasons": {**reasons},
    }


def _list_calls(confirmation: JsonObject) -> list[tuple[str, JsonObject, str]]:
    """Prefix of the id, call and hint of what is to be confirmed: the calls of another agent, if it waits for that."""
    args = object_at(confirmation, "args")
    asked = object_at(args, "toolConfirmation")
    hint = text_at(asked, "hint")
    if text_at(confirmation, "name") != CONFIRMATION:
        return [("", {}, hint)]
    nested = objects_at(object_at(asked, "payload"), "hitl_parts")
    if nested:
        return [(_NESTED, object_at(one, "originalFunctionCall"), hint) for one in nested]
    return [("", object_at(args, "originalFunctionCall"), hint)]


def _read_call(pause: AgentPause, prefix: str, call: JsonObject, hint: str) -> PeerPrompt | None:
    native_id, tool = text_at(call, "id"), text_at(call, "name")
    if not native_id or " " in native_id or not tool or tool == ASK_USER:
        return None
    wanted = object_at(call, "args")
    return make_permission_prompt(NAME, pause, prefix + native_id, tool, wanted, hint)


def _read_questions(
    pause: AgentPause, prefix: str, call: JsonObject, _hint: str
) -> PeerPrompt | None:
    native_id, questions = text_at(call, "id"), objects_at(object_at(call, "args"), "questions")
    if not native_id or " " in native_id or not 0 < len(questions) <= PROPERTY_LIMIT:
        return None
    return make_question(NAME, pause, prefix + native_id, questions)
