"""Strands: a data part lists the interrupts; the answer has one response for each, and nothing else.

The agent defines the meaning of an interrupt. Only one whose name means an approval is a yes-or-no question, answered
by ``y`` or ``n`` as in the framework's own examples; any other one asks for text.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from passerelle.a2a_mapping.dialects.gate import ask_for_words, make_permission_prompt
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

NAME: Final = "strands"
_GATES: Final = ("approv", "confirm", "permission")


def detect(pause: AgentPause) -> list[PeerPrompt]:
    """Each interrupt of the status message; empty if one of them has no id."""
    found = [
        interrupt
        for part in objects_at(pause.message, "parts")
        for interrupt in objects_at(object_at(part, "data"), "interrupts")
    ]
    return require_all([_read(pause, interrupt) for interrupt in found])


def encode(replies: Sequence[DecidedQuestion], task: str, context: str) -> JsonObject | None:
    """One response per interrupt; None if text is missing: cancel the task."""
    return encode_parts(replies, (task, context), _write_response)


def read_answers(message: JsonObject) -> list[NativeAnswer]:
    """The responses in a caller's message. A response may also be text: the question with its id decides."""
    return read_parts(message, _read_response)


def _read_response(part: JsonObject) -> NativeAnswer | None:
    data = object_at(part, "data")
    form = object_at(data, "interruptResponse")
    native_id = text_at(form, "interruptId")
    if not native_id:
        return None
    is_form = data.keys() == {"interruptResponse"} and (
        form.keys() == {"interruptId", "response"} and part.keys() <= {"data", "mediaType"}
    )
    said = {"y": True, "n": False}.get(text_at(form, "response"))
    return NativeAnswer(NAME, native_id, said if is_form else None, {PART: part}, is_certain=False)


def _write_response(reply: DecidedQuestion) -> JsonObject | None:
    response = _answer(reply)
    if response is None:
        return None
    form: JsonObject = {"interruptId": reply.prompt.native_id, "response": response}
    return {"data": {"interruptResponse": form}}


def _answer(reply: DecidedQuestion) -> str | None:
    if reply.prompt.kind == "permission":
        return "y" if reply.answer.allowed else "n"
    return reply.answer.text if reply.answer.allowed else None


def _read(pause: AgentPause, interrupt: JsonObject) -> PeerPrompt | None:
    native_id = text_at(interrupt, "interruptId") or text_at(interrupt, "id")
    if not native_id:
        return None
    name, reason = text_at(interrupt, "name"), interrupt.get("reason")
    tool = text_at(reason, "tool") if isinstance(reason, dict) else ""
    text = reason if isinstance(reason, str) else ""
    asked = make_permission_prompt(NAME, pause, native_id, tool or name, reason, text)
    is_gate = any(word in name.lower() for word in _GATES)
    return asked if is_gate else ask_for_words(asked)
