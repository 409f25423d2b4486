"""google-adk: a confirmation of a tool call is a function call, and its answer a function response of the same id.

A question is a data part with ``metadata.adk_type = function_call`` and the name ``adk_request_confirmation``; several
calls in one message are a group. An answer with an id that the agent does not know fails its task for good, and words
make a second confirmation: so the id is read here, kept, and sent back as it came. ``adk_request_credential`` wants a
secret, which never goes through an answer: such a question can only be cancelled. A message that holds any other call
beside these is none of this dialect, since one message would have to answer all of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from passerelle.a2a_mapping.dialects.gate import ask_leave
from passerelle.a2a_mapping.dialects.pause import Pause, Reply, identify_occurrence, make_reply
from passerelle.a2a_mapping.dialects.plain_text import CANCEL
from passerelle.a2a_mapping.members import object_at, objects_at, text_at
from passerelle.core.json import Json, JsonObject
from passerelle.core.prompt import PeerPrompt

NAME: Final = "adk"
CONFIRMATION: Final = "adk_request_confirmation"
CREDENTIAL: Final = "adk_request_credential"
_TYPE: Final = "adk_type"


def detect(pause: Pause) -> list[PeerPrompt]:
    """The calls of the status message that wait for a person; none when it holds one that cannot be read."""
    calls = [
        object_at(part, "data")
        for part in objects_at(pause.message, "parts")
        if text_at(object_at(part, "metadata"), _TYPE) == "function_call"
    ]
    prompts = [_read_call(pause, call) for call in calls]
    ids = {prompt.native_id for prompt in prompts if prompt}
    return [prompt for prompt in prompts if prompt] if len(ids) == len(calls) else []


def encode(replies: Sequence[Reply], task: str, context: str) -> JsonObject | None:
    """One function response for each call; None where a credential was asked for: cancel the task."""
    if any(reply.prompt.kind != "permission" for reply in replies):
        return None
    parts: list[Json] = [
        {
            "data": {
                "id": reply.prompt.native_id,
                "name": CONFIRMATION,
                "response": {"confirmed": reply.answer.allowed, "payload": None},
            },
            "metadata": {_TYPE: "function_response"},
        }
        for reply in replies
    ]
    return make_reply((task, context), [reply.decision_id for reply in replies], parts)


def _read_call(pause: Pause, call: JsonObject) -> PeerPrompt | None:
    native_id, name = text_at(call, "id"), text_at(call, "name")
    args = object_at(call, "args")
    if not native_id:
        return None
    if name == CONFIRMATION:
        wanted = object_at(args, "originalFunctionCall")
        hint = text_at(object_at(args, "toolConfirmation"), "hint")
        tool = text_at(wanted, "name")
        return ask_leave(NAME, pause, native_id, tool, object_at(wanted, "args"), hint)
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
