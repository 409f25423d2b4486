"""kagent: tools to approve and questions to answer, in the metadata of the status message under its extension.

The message must also list the extension. If an agent waits for an agent that it called (``nested``), the decision is
about the nested tools, and their ids are answered. One message answers all tools of a pause.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from passerelle.a2a_mapping.dialects.display import escape_text
from passerelle.a2a_mapping.dialects.gate import make_input_prompt, make_permission_prompt
from passerelle.a2a_mapping.dialects.native import METADATA, NativeAnswer
from passerelle.a2a_mapping.dialects.pause import AgentPause, DecidedQuestion, make_reply
from passerelle.a2a_mapping.dialects.plain_text import NO_CONSENT
from passerelle.a2a_mapping.extensions import KAGENT_HITL
from passerelle.a2a_mapping.members import object_at, objects_at, text_at, texts_at
from passerelle.core.approval.prompt import PeerPrompt
from passerelle.core.approval.response_schema import PROPERTY_LIMIT
from passerelle.core.wire.json import Json, JsonObject

NAME: Final = "kagent"
ASK_USER: Final = "ask_user"
"""The tool of an agent that asks."""
_MEMBER: Final = "answer"


def detect(pause: AgentPause) -> list[PeerPrompt]:
    """The tools or the questions of the status message; empty if one of them cannot be answered."""
    form = _read_form(pause.message)
    match text_at(form, "type"):
        case "tool_approval_request":
            return _detect_tools(pause, form)
        case "ask_user_request":
            return _detect_questions(pause, form)
        case _:
            return []


def encode(replies: Sequence[DecidedQuestion], task: str, context: str) -> JsonObject | None:
    """One response for the whole pause; None if a question has no answer: cancel the task."""
    ids = [reply.decision_id for reply in replies]
    first = replies[0]
    if first.prompt.kind == "permission":
        form: JsonObject = {
            "type": "tool_approval_response",
            "approvals": [_approve(reply) for reply in replies],
        }
        words = "Approved" if all(reply.answer.allowed for reply in replies) else "Rejected"
    else:
        answers = list_answers(first)
        if answers is None:
            return None
        form = {"type": "ask_user_response", "id": first.prompt.native_id, "answers": answers}
        words = "Answered"
    message = make_reply((task, context), ids, [{"text": words}])
    return {**message, "extensions": [KAGENT_HITL], "metadata": {KAGENT_HITL: form}}


def read_answers(message: JsonObject) -> list[NativeAnswer]:
    """The approvals in a caller's message; its text means nothing to the agent, and is not sent."""
    form = object_at(object_at(message, "metadata"), KAGENT_HITL)
    if text_at(form, "type") != "tool_approval_response":
        return []
    approvals = form.get("approvals")
    listed = approvals if isinstance(approvals, list) else []
    is_alone = all("text" in part for part in objects_at(message, "parts"))
    is_whole = form.keys() <= {"type", "approvals"} and KAGENT_HITL in texts_at(
        message, "extensions"
    )
    kept: JsonObject = {METADATA: {KAGENT_HITL: form}}
    read = [_read_approval(one if isinstance(one, dict) else {}) for one in listed or [None]]
    return [
        NativeAnswer(NAME, name, said if is_whole else None, kept, reason, is_alone=is_alone)
        for name, said, reason in read
    ]


def _read_approval(one: JsonObject) -> tuple[str, bool | None, str | None]:
    said, reason = one.get("approved"), one.get("rejection_reason")
    is_form = one.keys() <= {"id", "approved", "rejection_reason"}
    fits = is_form and isinstance(said, bool) and (reason is None or isinstance(reason, str))
    return (
        text_at(one, "id"),
        said if fits and isinstance(said, bool) else None,
        reason if isinstance(reason, str) and reason else None,
    )


def _read_form(message: JsonObject) -> JsonObject:
    if KAGENT_HITL not in texts_at(message, "extensions"):
        return {}
    return object_at(object_at(message, "metadata"), KAGENT_HITL)


def _detect_tools(pause: AgentPause, form: JsonObject) -> list[PeerPrompt]:
    tools = objects_at(object_at(form, "nested") or form, "tools")
    ids = {text_at(tool, "id") for tool in tools}
    if "" in ids or len(ids) != len(tools):
        return []
    hint = text_at(form, "hint")
    return [
        make_permission_prompt(
            NAME,
            pause,
            text_at(tool, "id"),
            text_at(tool, "name"),
            # The args of a call without arguments may be null.
            {} if tool.get("args") is None else tool["args"],
            hint,
        )
        for tool in tools
    ]


def _detect_questions(pause: AgentPause, form: JsonObject) -> list[PeerPrompt]:
    questions = objects_at(form, "questions")
    nested = object_at(form, "nested")
    tools = objects_at(nested, "tools")
    if nested and (len(tools) != 1 or text_at(tools[0], "name") != ASK_USER):
        return []
    native_id = text_at(tools[0] if nested else form, "id")
    if not native_id or not 0 < len(questions) <= PROPERTY_LIMIT:
        return []
    return [make_question(NAME, pause, native_id, questions)]


def make_question(
    dialect: str, pause: AgentPause, native_id: str, questions: list[JsonObject]
) -> PeerPrompt:
    """One prompt for all questions of a call of ``ask_user``, at least one: for words, or for a form with several."""
    words = "\n".join(map(_format_question, questions))
    form = _make_form_schema(questions) if len(questions) > 1 else None
    return make_input_prompt(dialect, pause, native_id, ASK_USER, words, form)


def _format_question(question: JsonObject) -> str:
    choices = ", ".join(texts_at(question, "choices"))
    text = text_at(question, "question")
    return f"{text} ({choices})" if choices else text


def _make_form_schema(questions: list[JsonObject]) -> JsonObject:
    """A form with one member per question, in order; the choices are suggestions, and are in its title."""
    names = [f"{_MEMBER}{place}" for place in range(1, len(questions) + 1)]
    properties: JsonObject = {
        name: {"type": "string", "title": escape_text(_format_question(question), 200)}
        for name, question in zip(names, questions, strict=True)
    }
    return {
        "type": "object",
        "properties": properties,
        "required": [*names],
        "additionalProperties": False,
    }


def _approve(reply: DecidedQuestion) -> JsonObject:
    answer = reply.answer
    approval: JsonObject = {"id": reply.prompt.native_id, "approved": answer.allowed}
    if not answer.allowed:
        approval["rejection_reason"] = answer.text or NO_CONSENT
    return approval


def list_answers(reply: DecidedQuestion) -> list[Json] | None:
    """The answers in order of the questions, which is that of the member names; None if there are none."""
    content = reply.answer.content
    if not reply.answer.allowed or content is None:
        return None
    if content.keys() == {"text"}:
        return [{"answer": [content["text"]]}]
    names = sorted(content, key=lambda name: int(name.removeprefix(_MEMBER)))
    return [{"answer": [content[name]]} for name in names]
