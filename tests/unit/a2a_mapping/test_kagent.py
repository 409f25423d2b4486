"""kagent: several questions are a form, questions of a nested agent have its id, and its usage sums are read."""

from __future__ import annotations

import pytest

from passerelle.a2a_mapping.answer_metadata import Usage, read_usage
from passerelle.a2a_mapping.dialects.kagent import read_answers
from passerelle.a2a_mapping.dialects.pause import DecidedQuestion
from passerelle.a2a_mapping.dialects.registry import detect, encode
from passerelle.a2a_mapping.extensions import KAGENT_HITL, KAGENT_USAGE
from passerelle.core.approval.prompt import PeerAnswer
from passerelle.core.approval.response_schema import check_content, check_schema
from passerelle.core.wire.json import Json, JsonObject

QUESTIONS: list[Json] = [
    {"question": "Which database?", "choices": ["PostgreSQL", "MySQL"], "multiple": False},
    {"question": "Anything else?", "choices": [], "multiple": False},
]


def _ask(form: JsonObject) -> JsonObject:
    message: JsonObject = {
        "messageId": "m1",
        "extensions": [KAGENT_HITL],
        "metadata": {KAGENT_HITL: form},
        "parts": [],
    }
    return {"id": "T", "status": {"state": "TASK_STATE_INPUT_REQUIRED", "message": message}}


@pytest.mark.requirement("DIA-5")
def test_several_questions_are_a_form_and_its_answers_go_by_their_place() -> None:
    form: JsonObject = {"type": "ask_user_request", "id": "q", "questions": QUESTIONS}
    [prompt] = detect("peer", _ask(form))
    assert prompt.response_schema is not None
    check_schema(prompt.response_schema)
    content: JsonObject = {"answer2": "no", "answer1": "MySQL"}
    check_content(prompt.response_schema, content)
    given = PeerAnswer(allowed=True, text="a remark", content=content)
    message = encode([DecidedQuestion(prompt, given, "dec_1")], "T", "C")
    assert message is not None
    assert message["metadata"] == {
        KAGENT_HITL: {
            "type": "ask_user_response",
            "id": "q",
            "answers": [{"answer": ["MySQL"]}, {"answer": ["no"]}],
        }
    }
    assert encode([DecidedQuestion(prompt, PeerAnswer(allowed=False), "dec_1")], "T", "C") is None


@pytest.mark.parametrize(
    ("tools", "native_id"),
    [
        ([{"id": "child", "name": "ask_user"}], "child"),
        ([{"id": "child", "name": "delete_pod"}], None),
        ([], None),
    ],
)
def test_question_of_an_agent_below_is_answered_by_its_id(
    tools: list[Json], native_id: str | None
) -> None:
    nested: JsonObject = {"subagent_name": "below", "tools": tools}
    form: JsonObject = {
        "type": "ask_user_request",
        "id": "parent",
        "questions": QUESTIONS[1:],
        "nested": nested,
    }
    [prompt] = detect("peer", _ask(form))
    assert prompt.native_id == native_id


@pytest.mark.parametrize(
    "form",
    [
        {"type": "tool_approval_request", "tools": [{"name": "nameless"}]},
        {"type": "tool_approval_request", "tools": [{"id": "a"}, {"id": "a"}]},
        {"type": "tool_approval_request", "tools": []},
        {"type": "ask_user_request", "id": "q", "questions": []},
        {"type": "something_else"},
    ],
)
def test_form_that_cannot_be_answered_whole_is_a_question_in_words(form: JsonObject) -> None:
    assert [prompt.dialect for prompt in detect("peer", _ask(form))] == ["plain_text"]


APPROVALS: tuple[tuple[Json, list[bool | None]], ...] = (
    ([{"id": "a", "approved": True}], [True]),
    ([{"id": "a", "approved": False, "rejection_reason": "no"}], [False]),
    ([{"id": "a", "approved": "true"}], [None]),
    ([{"id": "a", "approved": True, "args": {}}], [None]),
    ([{"id": "a", "approved": False, "rejection_reason": 7}], [None]),
    ([7], [None]),
    ([], [None]),
    ("all", [None]),
)


@pytest.mark.parametrize(("approvals", "said"), APPROVALS)
def test_approvals_of_a_caller_are_literal(approvals: Json, said: list[bool | None]) -> None:
    form: JsonObject = {"type": "tool_approval_response", "approvals": approvals}
    message: JsonObject = {
        "extensions": [KAGENT_HITL],
        "metadata": {KAGENT_HITL: form},
        "parts": [{"text": "Approved"}],
    }
    assert [answer.allows for answer in read_answers(message)] == said
    assert all(answer.is_alone for answer in read_answers(message))
    # Without its name in ``extensions`` the extension does not count; any other form is no approval.
    unnamed = {name: value for name, value in message.items() if name != "extensions"}
    assert {answer.allows for answer in read_answers(unnamed)} == {None}
    beside: JsonObject = {**message, "parts": [{"data": {}}]}
    assert not any(answer.is_alone for answer in read_answers(beside))
    assert read_answers({"metadata": {KAGENT_HITL: {"type": "ask_user_response"}}}) == []


@pytest.mark.requirement("DIA-5")
def test_sum_of_the_task_counts_before_single_answers() -> None:
    whole: JsonObject = {"inputTokens": 1300, "outputTokens": 210, "reasoningTokens": 40}
    single: JsonObject = {"promptTokenCount": 5, "candidatesTokenCount": 7}
    status: JsonObject = {"message": {"metadata": {"kagent_usage_metadata": single}}}
    assert read_usage({"metadata": {KAGENT_USAGE: whole}, "status": status}) == Usage(1300, 250)
    assert read_usage({"status": status}) == Usage(5, 7)
    assert read_usage({"metadata": {KAGENT_USAGE: {"models": []}}}) is None
