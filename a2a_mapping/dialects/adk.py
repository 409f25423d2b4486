"""google-adk: a question is a function call, and its answer a function response of the same id.

A question is a data part with ``metadata.adk_type = function_call``; several calls in one message are a group.

- ``adk_request_confirmation``: may a tool run.
- ``adk_request_input``: words, a small form, or (in a workflow) may a tool run.
- ``adk_request_credential`` asks for a secret, which must never be in an answer: it can only be cancelled.

An answer with an unknown id fails the agent's task for good, and an answer in words makes it ask again: so the id is
read, kept, and sent back unchanged. A message with any other call besides these does not match this dialect, since one
message would have to answer all of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from passerelle.a2a_mapping.dialects.gate import make_input_prompt, make_permission_prompt
from passerelle.a2a_mapping.dialects.native import PART, NativeAnswer, read_flag, read_parts
from passerelle.a2a_mapping.dialects.pause import (
    AgentPause,
    DecidedQuestion,
    encode_parts,
    identify_occurrence,
    require_all,
)
from passerelle.a2a_mapping.dialects.plain_text import CANCEL
from passerelle.a2a_mapping.members import object_at, objects_at, text_at
from passerelle.core.approval.prompt import PeerPrompt
from passerelle.core.approval.response_schema import check_schema
from passerelle.core.errors import InvalidInput
from passerelle.core.wire.json import JsonObject

NAME: Final = "adk"
CONFIRMATION: Final = "adk_request_confirmation"
CREDENTIAL: Final = "adk_request_credential"
INPUT: Final = "adk_request_input"
_TYPE: Final = "adk_type"
_LEAVE, _WORDS, _FORM = "leave ", "words ", "form "
"""The kind of an input is a prefix of its id, which has no blank: it determines the form of the answer."""
_RESULT: Final = "result"


def detect(pause: AgentPause) -> list[PeerPrompt]:
    """The waiting calls of the status message; empty if one of them cannot be read."""
    calls = [
        object_at(part, "data")
        for part in objects_at(pause.message, "parts")
        if text_at(object_at(part, "metadata"), _TYPE) == "function_call"
    ]
    return require_all([_read_call(pause, call) for call in calls])


def encode(replies: Sequence[DecidedQuestion], task: str, context: str) -> JsonObject | None:
    """One function response per call; None if one has no answer, such as a credential: cancel the task."""
    return encode_parts(replies, (task, context), _write_response)


def read_answers(message: JsonObject) -> list[NativeAnswer]:
    """The confirmations in a caller's message, one per function response."""
    return read_parts(message, _read_response)


def _read_response(part: JsonObject) -> NativeAnswer | None:
    data = object_at(part, "data")
    name, native_id = text_at(data, "name"), text_at(data, "id")
    if text_at(object_at(part, "metadata"), _TYPE) != "function_response":
        return None
    if name not in {CONFIRMATION, INPUT}:
        return None
    # The hint belongs to the question, and a payload would change the request.
    response = object_at(data, "response")
    said = read_flag(response, "confirmed", "payload", "hint")
    is_form = part.keys() <= {"data", "metadata", "mediaType"} and (
        data.keys() <= {"id", "name", "response"} and response.get("payload") is None
    )
    return NativeAnswer(
        NAME,
        native_id if name == CONFIRMATION else _LEAVE + native_id,
        said if is_form else None,
        {PART: part},
        # An input may also ask for words or a form.
        is_certain=name == CONFIRMATION,
    )


def _write_response(reply: DecidedQuestion) -> JsonObject | None:
    response = _answer(reply)
    if response is None:
        return None
    marked, _, plain = (reply.prompt.native_id or "").rpartition(" ")
    name = INPUT if marked else CONFIRMATION
    form: JsonObject = {"id": plain, "name": name, "response": response}
    return {"data": form, "metadata": {_TYPE: "function_response"}}


def _answer(reply: DecidedQuestion) -> JsonObject | None:
    given, native_id = reply.answer, reply.prompt.native_id or ""
    if reply.prompt.kind == "permission":
        return {"confirmed": given.allowed, "payload": None}
    if not given.allowed or given.content is None:
        return None
    if native_id.startswith(_FORM):
        return given.content
    return {_RESULT: given.text} if native_id.startswith(_WORDS) else None


def _read_call(pause: AgentPause, call: JsonObject) -> PeerPrompt | None:
    native_id, name = text_at(call, "id"), text_at(call, "name")
    args = object_at(call, "args")
    if not native_id or " " in native_id:
        return None
    if name == INPUT:
        return _read_input(pause, native_id, args)
    if name == CONFIRMATION:
        wanted = object_at(args, "originalFunctionCall")
        hint = text_at(object_at(args, "toolConfirmation"), "hint")
        tool = text_at(wanted, "name")
        return make_permission_prompt(NAME, pause, native_id, tool, object_at(wanted, "args"), hint)
    if name == CREDENTIAL:
        return PeerPrompt(
            dialect=NAME,
            occurrence=identify_occurrence(pause, native_id),
            native_status=pause.native_status,
            kind="auth",
            action_type="credential",
            options=(CANCEL,),
            native_id=native_id,
            message_id=pause.message_id,
            text=pause.text or None,
        )
    return None


def _read_input(pause: AgentPause, native_id: str, args: JsonObject) -> PeerPrompt | None:
    text, payload = text_at(args, "message"), object_at(args, "payload")
    schema = object_at(args, "response_schema") or object_at(args, "responseSchema")
    tool = text_at(payload, "tool_name")
    if tool and "confirmed" in object_at(schema, "properties"):
        wanted = object_at(payload, "args")
        return make_permission_prompt(NAME, pause, _LEAVE + native_id, tool, wanted, text)
    form = _read_form(schema)
    if schema and form is None and schema.get("type") != "string":
        return None
    prefix = _FORM if form else _WORDS
    return make_input_prompt(NAME, pause, prefix + native_id, INPUT, text, form)


def _read_form(schema: JsonObject) -> JsonObject | None:
    """The form for people; a single value becomes the only member of a form."""
    if not schema or schema.get("type") == "string":
        return None
    form: JsonObject = schema
    if schema.get("type") != "object":
        form = {"type": "object", "properties": {_RESULT: schema}, "required": [_RESULT]}
    try:
        check_schema(form)
    except InvalidInput:
        return None
    return form
