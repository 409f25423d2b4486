"""LangGraph: an artifact named ``Interrupt`` and a status without text; the answer is the resume value.

Its middleware for human decisions lists tool calls (``action_requests``) with the allowed decisions of each; one resume
answers all of them, in order. Any other interrupt asks for words. Anything sent to a parked task becomes the resume
value, text included, so only decisions are ever sent. If a call allows no rejection, a rejection is CancelTask.

Observed with LangGraph API 0.16: the artifact is in the answer to a message and in streams, but not in GetTask.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from passerelle.a2a_mapping.dialects.gate import (
    APPROVE,
    REJECT,
    ask_for_words,
    make_permission_prompt,
)
from passerelle.a2a_mapping.dialects.native import PART, NativeAnswer
from passerelle.a2a_mapping.dialects.pause import AgentPause, DecidedQuestion, make_reply
from passerelle.a2a_mapping.dialects.plain_text import CANCEL, NO_CONSENT
from passerelle.a2a_mapping.members import object_at, objects_at, text_at, texts_at
from passerelle.core.approval.prompt import PeerPrompt
from passerelle.core.wire.json import Json, JsonObject

NAME: Final = "langgraph"
_ARTIFACT: Final = "Interrupt"
_SEPARATOR: Final = " "


def detect(pause: AgentPause) -> list[PeerPrompt]:
    """The calls and questions of every interrupt; empty if one of them has no id."""
    asked = [one for one in pause.artifacts if text_at(one, "name") == _ARTIFACT]
    # Artifacts stay in the Task: the last one is that of this pause.
    parts = objects_at(asked[-1], "parts") if asked else []
    found = [data for part in parts if (data := object_at(part, "data"))]
    ids = {text_at(interrupt, "id") for interrupt in found}
    if "" in ids or len(ids) != len(found):
        return []
    return [prompt for interrupt in found for prompt in _read(pause, interrupt)]


def encode(replies: Sequence[DecidedQuestion], task: str, context: str) -> JsonObject | None:
    """One resume for the whole pause; None if a rejection cannot be expressed: cancel the task."""
    resumed: dict[str, Json] = {}
    for reply in sorted(replies, key=_position):
        value = _answer(reply)
        if value is None:
            return None
        name, _ = _split(reply)
        if reply.prompt.kind == "permission":
            held = resumed.setdefault(name, {"decisions": []})
            if isinstance(held, dict) and isinstance(decisions := held["decisions"], list):
                decisions.append(value)
        else:
            resumed[name] = value
    [*values] = resumed.values()
    resume: Json = values[0] if len(values) == 1 else resumed
    ids = [reply.decision_id for reply in replies]
    return make_reply((task, context), ids, [{"data": {"resume": resume}}])


def read_answers(message: JsonObject) -> list[NativeAnswer]:
    """The decision in a caller's resume of one call; any other resume has another form.

    It names no call, and an edit is no plain approval.
    """
    parts = objects_at(message, "parts")
    part = next((one for one in parts if "resume" in object_at(one, "data")), None)
    if part is None:
        return []
    data = object_at(part, "data")
    resume = object_at(data, "resume")
    decisions = objects_at(resume, "decisions")
    is_form = data.keys() == {"resume"} and resume.keys() == {"decisions"} and len(decisions) == 1
    decision: JsonObject = decisions[0] if is_form else {}
    said = {"approve": True, "reject": False}.get(text_at(decision, "type"))
    is_plain = decision.keys() <= ({"type", "message"} if said is False else {"type"})
    return [
        NativeAnswer(
            NAME,
            None,
            said if is_plain else None,
            {PART: part},
            text_at(decision, "message") or None,
            is_alone=len(parts) == 1,
            is_certain=False,
        )
    ]


def _read(pause: AgentPause, interrupt: JsonObject) -> list[PeerPrompt]:
    name, value = text_at(interrupt, "id"), interrupt.get("value")
    form: JsonObject = value if isinstance(value, dict) else {}
    calls, reviews = objects_at(form, "action_requests"), objects_at(form, "review_configs")
    allowed = {text_at(one, "action_name"): texts_at(one, "allowed_decisions") for one in reviews}
    if calls:
        return [
            _read_call(pause, f"{name}{_SEPARATOR}{place}", call, allowed)
            for place, call in enumerate(calls)
        ]
    words = value if isinstance(value, str) else ""
    asked = make_permission_prompt(NAME, pause, f"{name}{_SEPARATOR}", "", value, words)
    return [ask_for_words(asked)]


def _read_call(
    pause: AgentPause, native_id: str, call: JsonObject, allowed: dict[str, list[str]]
) -> PeerPrompt:
    tool = text_at(call, "name")
    args = call.get("args", call.get("arguments"))
    asked = make_permission_prompt(NAME, pause, native_id, tool, args, text_at(call, "description"))
    decisions = allowed.get(tool, ["approve", "reject"])
    yes = [APPROVE] if "approve" in decisions and APPROVE in asked.options else []
    return replace(asked, options=(*yes, REJECT if "reject" in decisions else CANCEL))


def _answer(reply: DecidedQuestion) -> Json:
    answer = reply.answer
    if reply.prompt.kind != "permission":
        return answer.text if answer.allowed else None
    if answer.allowed:
        return {"type": "approve"}
    if not any(option.kind == "reject_once" for option in reply.prompt.options):
        return None
    return {"type": "reject", "message": answer.text or NO_CONSENT}


def _split(reply: DecidedQuestion) -> tuple[str, str]:
    name, _, place = (reply.prompt.native_id or "").rpartition(_SEPARATOR)
    return name, place


def _position(reply: DecidedQuestion) -> tuple[str, int]:
    name, place = _split(reply)
    return name, int(place or 0)
