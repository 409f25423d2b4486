"""Mastra: a data part with the payload of the suspended tool; the answer is the data that the tool resumes with.

A tool that needs approval takes ``approved``, and a ``reason`` beside a no. A tool that suspends itself takes what its
own schema says, which is JSON in a text; a schema that is no small form is answered in words. One call waits at a time,
and may wait again, for an approval first and then for data: the status message identifies the request, not the call.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

import orjson

from passerelle.a2a_mapping.dialects.gate import make_permission_prompt
from passerelle.a2a_mapping.dialects.native import PART, NativeAnswer, read_flag
from passerelle.a2a_mapping.dialects.pause import AgentPause, DecidedQuestion, make_reply
from passerelle.a2a_mapping.dialects.plain_text import CANCEL, NO_CONSENT, REPLY
from passerelle.a2a_mapping.members import object_at, objects_at, text_at
from passerelle.core.approval.prompt import PeerPrompt
from passerelle.core.approval.response_schema import check_schema
from passerelle.core.errors import InvalidInput
from passerelle.core.wire.json import Json, JsonObject

NAME: Final = "mastra"
_PAYLOAD: Final = "suspendPayload"
_APPROVED: Final = "approved"
_REASON: Final = "reason"


def detect(pause: AgentPause) -> list[PeerPrompt]:
    """The call that waits; empty if it cannot be answered in this form."""
    payloads = [
        payload
        for part in objects_at(pause.message, "parts")
        if (payload := object_at(object_at(part, "data"), _PAYLOAD))
    ]
    if len(payloads) != 1:
        return []
    (payload,) = payloads
    tool = text_at(payload, "toolName")
    if not text_at(payload, "toolCallId") or not tool:
        return []
    asked = make_permission_prompt(NAME, pause, None, tool, payload.get("args"), "")
    if _PAYLOAD not in payload:
        return [asked]
    schema = _read_schema(payload.get("resumeSchema"))
    if schema is None:
        return []
    form = replace(asked, kind="input", action_type="free_input", response_schema=schema)
    return [replace(form, options=(REPLY, CANCEL))]


def encode(replies: Sequence[DecidedQuestion], task: str, context: str) -> JsonObject | None:
    """One data part; None if a form was not filled in: cancel the task."""
    reply = replies[0]
    data = _decide(reply) if reply.prompt.kind == "permission" else _fill_in(reply)
    if data is None:
        return None
    return make_reply((task, context), [reply.decision_id], [{"data": data}])


def read_answers(message: JsonObject) -> list[NativeAnswer]:
    """The approval in a caller's message; it names no call. Mastra's own client sends it as text, too."""
    parts = objects_at(message, "parts")
    part = next((one for one in parts if _APPROVED in object_at(one, "data")), None)
    if part is None:
        return []
    data = object_at(part, "data")
    said = read_flag(data, _APPROVED, _REASON)
    return [
        NativeAnswer(
            NAME,
            None,
            None if said and _REASON in data else said,
            {PART: part},
            text_at(data, _REASON) or None,
            is_alone=all(one is part or _read_json(one.get("text")) == data for one in parts),
            is_certain=False,
        )
    ]


def _decide(reply: DecidedQuestion) -> JsonObject:
    if reply.answer.allowed:
        return {_APPROVED: True}
    return {_APPROVED: False, _REASON: reply.answer.text or NO_CONSENT}


def _fill_in(reply: DecidedQuestion) -> JsonObject | None:
    return reply.answer.content if reply.answer.allowed else None


def _read_schema(value: Json) -> JsonObject | None:
    schema = _read_json(value) if isinstance(value, str) else value
    if not isinstance(schema, dict):
        return None
    try:
        check_schema(schema)
    except InvalidInput:
        return None
    return schema


def _read_json(text: Json) -> Json:
    try:
        found: Json = orjson.loads(text) if isinstance(text, str) else None
    except orjson.JSONDecodeError:
        return None
    return found
