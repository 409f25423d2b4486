"""gemini-cli: which data of callers decides a call, and in which statuses a call waits."""

from __future__ import annotations

from typing import Final

import pytest

from passerelle.a2a_mapping.dialects.registry import detect, read_native
from passerelle.a2a_mapping.v0_3.forms import Form
from passerelle.a2a_mapping.v0_3.objects import read_status_event
from passerelle.core.wire.json import Json, JsonObject

_CODER: Final[JsonObject] = {"coderAgent": {"kind": "tool-call-update"}}


def _say(*parts: Json) -> JsonObject:
    return {"messageId": "m", "role": "ROLE_USER", "parts": [*parts]}


def _call(status: str = "awaiting_approval", request: JsonObject | None = None) -> JsonObject:
    asked: JsonObject = {"callId": "c1", "name": "run_shell_command", "args": {"command": "ls"}}
    details: JsonObject = {"type": "exec", "title": "Confirm Shell Command", "command": "ls"}
    data: JsonObject = {
        "request": {**asked, **(request or {})},
        "status": status,
        "confirmationDetails": details,
    }
    return {"messageId": "m1", "role": "ROLE_AGENT", "parts": [{"data": data}]}


def _find_dialect(*history: Json, message: JsonObject | None = None) -> str:
    status: JsonObject = {"state": "TASK_STATE_INPUT_REQUIRED"}
    if message is not None:
        status["message"] = message
    (prompt,) = detect("peer", {"id": "T", "status": status, "history": [*history]})
    return prompt.dialect


@pytest.mark.requirement("DIA-3")
@pytest.mark.parametrize(
    ("outcome", "members", "allows"),
    [
        ("proceed_once", {}, True),
        ("cancel", {}, False),
        ("proceed_once", {"newContent": "other"}, None),
        ("proceed_always", {}, None),
        ("proceed_always_server", {}, None),
        ("proceed_always_tool", {}, None),
        ("modify_with_editor", {}, None),
    ],
)
def test_an_outcome_of_a_caller_is_a_decision_whatever_else_waits(
    outcome: str, members: JsonObject, *, allows: bool | None
) -> None:
    part: JsonObject = {"data": {"callId": "c1", "outcome": outcome, **members}}
    (answer,) = read_native(_say(part))
    assert (answer.dialect, answer.native_id, answer.allows) == ("gemini_cli", "c1", allows)
    assert answer.is_certain
    assert answer.is_alone
    (beside,) = read_native(_say(part, {"text": "and go on"}))
    assert not beside.is_alone


@pytest.mark.requirement("DIA-3")
@pytest.mark.parametrize(
    ("outcome", "is_certain"), [("proceed_always_and_save", True), ("sold", False)]
)
def test_outcome_that_is_neither_yes_nor_no_decides_nothing(
    outcome: str, *, is_certain: bool
) -> None:
    """A word of another version counts only for a call that is known to wait: it does not pass by the rules."""
    (answer,) = read_native(_say({"data": {"callId": "c1", "outcome": outcome}}))
    assert (answer.allows, answer.is_certain) == (None, is_certain)


@pytest.mark.requirement("DIA-3")
@pytest.mark.parametrize(
    "data",
    [{"callId": "c1", "outcome": 5}, {"callId": "", "outcome": "cancel"}, {"callId": "c1"}],
)
def test_data_that_the_agent_does_not_take_as_an_outcome_is_no_decision(data: JsonObject) -> None:
    assert not read_native(_say({"data": data}))


@pytest.mark.requirement("DIA-5")
def test_a_call_waits_as_long_as_it_is_the_last_that_the_agent_said() -> None:
    answer = _say({"data": {"callId": "c1", "outcome": "proceed_once"}})
    later: JsonObject = {**_call("success"), "messageId": "m2"}
    words: JsonObject = {"messageId": "m3", "role": "ROLE_AGENT", "parts": [{"text": "Done."}]}
    assert _find_dialect(_call()) == "gemini_cli"
    assert _find_dialect(message=_call()) == "gemini_cli"
    assert _find_dialect(_call(), answer) == "gemini_cli"
    assert _find_dialect(_call(), later) == "plain_text"
    assert _find_dialect(_call(), words) == "plain_text"
    assert _find_dialect(_call(), message=words) == "plain_text"


@pytest.mark.requirement("DIA-5")
@pytest.mark.parametrize("request_", [{"callId": ""}, {"callId": "c 1"}, {"name": None}])
def test_a_call_that_cannot_be_answered_is_a_question_in_words(request_: JsonObject) -> None:
    assert _find_dialect(_call(request=request_)) == "plain_text"


@pytest.mark.requirement("DIA-5")
@pytest.mark.parametrize(
    ("metadata", "final", "state"),
    [
        (_CODER, False, "TASK_STATE_WORKING"),
        (_CODER, True, "TASK_STATE_INPUT_REQUIRED"),
        ({}, False, "TASK_STATE_INPUT_REQUIRED"),
    ],
)
def test_the_agent_works_until_it_says_that_its_turn_is_over(
    metadata: JsonObject, state: str, *, final: bool
) -> None:
    """The Python SDK sends ``final: false`` with every status that waits."""
    status: JsonObject = {"state": "input-required"}
    event: JsonObject = {"taskId": "T", "status": status, "final": final, "metadata": metadata}
    assert read_status_event(event, Form.KIND)["status"] == {"state": state}
