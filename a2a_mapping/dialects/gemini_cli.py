"""The A2A server of gemini-cli: a tool call that waits, as a data part; the answer is the call's id and an outcome.

The call is in a message of its own, and the status that waits comes after it, mostly without a message. So the request
is the agent's last message. The outcomes that allow more than this call are not offered. Calls wait one at a time; a
``cancel`` cancels those that come after it, too.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from passerelle.a2a_mapping.dialects.gate import make_permission_prompt
from passerelle.a2a_mapping.dialects.native import PART, NativeAnswer, read_parts
from passerelle.a2a_mapping.dialects.pause import (
    AgentPause,
    DecidedQuestion,
    encode_parts,
    require_all,
)
from passerelle.a2a_mapping.members import object_at, objects_at, text_at
from passerelle.core.approval.prompt import PeerPrompt
from passerelle.core.wire.json import JsonObject

NAME: Final = "gemini_cli"
_DETAILS: Final = "confirmationDetails"
_SHOWN: Final = ("title", "serverName", "command", "prompt", "fileDiff")
"""Members of the details that say what would be done."""
_CALL: Final = "callId"
_OUTCOME: Final = "outcome"
_ONCE: Final = "proceed_once"
_CANCEL: Final = "cancel"
_OUTCOMES: Final = frozenset({
    _ONCE, _CANCEL, "modify_with_editor", "proceed_always", "proceed_always_and_save",
    "proceed_always_server", "proceed_always_tool",
})  # fmt: skip
"""Outcomes that no other content has; a version of the agent may take further ones."""


def detect(pause: AgentPause) -> list[PeerPrompt]:
    """The calls that wait in the agent's last message; empty if one of them cannot be answered."""
    calls = [
        call
        for part in objects_at(pause.message or pause.said, "parts")
        if (call := object_at(part, "data"))
        and object_at(call, _DETAILS)
        and call.get("status") == "awaiting_approval"
    ]
    return require_all([_read(pause, call) for call in calls])


def encode(replies: Sequence[DecidedQuestion], task: str, context: str) -> JsonObject | None:
    """A data part for each call."""
    return encode_parts(replies, (task, context), _write_part)


def read_answers(message: JsonObject) -> list[NativeAnswer]:
    """The outcomes in a caller's message; one that allows more, or changes the call, is neither a yes nor a no."""
    return read_parts(message, _read_part)


def _read(pause: AgentPause, call: JsonObject) -> PeerPrompt | None:
    request, details = object_at(call, "request"), object_at(call, _DETAILS)
    native_id, tool = text_at(request, _CALL), text_at(request, "name")
    if not native_id or " " in native_id or not tool:
        return None
    args = object_at(request, "args")
    known = [one for one in args.values() if isinstance(one, str)]
    words = [text for name in _SHOWN if (text := text_at(details, name)) and text not in known]
    return make_permission_prompt(NAME, pause, native_id, tool, args, "\n".join(words))


def _write_part(reply: DecidedQuestion) -> JsonObject:
    outcome = _ONCE if reply.answer.allowed else _CANCEL
    return {"data": {_CALL: reply.prompt.native_id, _OUTCOME: outcome}}


def _read_part(part: JsonObject) -> NativeAnswer | None:
    data = object_at(part, "data")
    native_id, outcome = text_at(data, _CALL), text_at(data, _OUTCOME)
    if not native_id or not outcome:
        return None
    is_form = data.keys() == {_CALL, _OUTCOME}
    said = {_ONCE: True, _CANCEL: False}.get(outcome) if is_form else None
    return NativeAnswer(NAME, native_id, said, {PART: part}, is_certain=outcome in _OUTCOMES)
