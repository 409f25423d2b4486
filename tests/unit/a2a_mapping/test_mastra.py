"""Mastra: which messages of callers are an approval, and which requests are none."""

from __future__ import annotations

import pytest

from passerelle.a2a_mapping.dialects.registry import detect, read_native
from passerelle.core.wire.json import Json, JsonObject

_APPROVED: JsonObject = {"data": {"approved": True}}


def _say(*parts: JsonObject) -> JsonObject:
    return {"messageId": "m", "role": "ROLE_USER", "parts": [*parts]}


@pytest.mark.requirement("DIA-3")
@pytest.mark.parametrize(
    ("parts", "allows", "comment"),
    [
        ([_APPROVED], True, None),
        ([{"data": {"approved": False}}], False, None),
        ([{"data": {"approved": False, "reason": "too much"}}], False, "too much"),
        ([{"data": {"approved": True, "reason": "fine"}}], None, "fine"),
        ([{"data": {"approved": "true"}}], None, None),
        ([{"data": {"approved": True, "amount": 1}}], None, None),
        # As Mastra's own client sends it.
        ([{"text": '{\n  "approved": true\n}'}, _APPROVED], True, None),
    ],
)
def test_an_approval_of_a_caller_has_exactly_its_members(
    parts: list[JsonObject], *, allows: bool | None, comment: str | None
) -> None:
    (answer,) = read_native(_say(*parts))
    assert (answer.dialect, answer.allows, answer.comment) == ("mastra", allows, comment)
    assert answer.is_alone
    assert answer.kept == {"part": parts[-1]}


@pytest.mark.requirement("DIA-3")
@pytest.mark.parametrize("beside", [{"text": "yes"}, {"text": '{"approved": false}'}, {"data": {}}])
def test_an_approval_beside_other_content_is_not_alone(beside: JsonObject) -> None:
    (answer,) = read_native(_say(beside, _APPROVED))
    assert not answer.is_alone


@pytest.mark.requirement("DIA-5")
@pytest.mark.parametrize(
    "payload",
    [
        {},
        {"toolName": "pay"},
        {"toolCallId": "c1"},
        {"toolCallId": "c1", "toolName": "pay", "suspendPayload": {}, "resumeSchema": "{"},
        {"toolCallId": "c1", "toolName": "pay", "suspendPayload": {}, "resumeSchema": 7},
    ],
)
def test_a_form_that_cannot_be_read_is_a_question_in_words(payload: Json) -> None:
    message: JsonObject = {"messageId": "m1", "parts": [{"data": {"suspendPayload": payload}}]}
    status: JsonObject = {"state": "TASK_STATE_INPUT_REQUIRED", "message": message}
    (prompt,) = detect("peer", {"id": "T", "status": status})
    assert prompt.dialect == "plain_text"


@pytest.mark.requirement("DIA-5")
def test_a_call_that_waits_again_asks_again() -> None:
    def ask(name: str) -> str:
        payload: JsonObject = {"toolCallId": "c1", "toolName": "pay", "args": {"amount": 1}}
        parts: list[Json] = [{"data": {"suspendPayload": payload}}]
        status: JsonObject = {
            "state": "TASK_STATE_INPUT_REQUIRED",
            "message": {"messageId": name, "parts": parts},
        }
        (prompt,) = detect("peer", {"id": "T", "status": status})
        return prompt.occurrence

    assert ask("m1") == ask("m1") != ask("m2")
