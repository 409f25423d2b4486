"""kagent's Python agents: mixed decisions go by call, and are not sent where the agent would misread them."""

from __future__ import annotations

import pytest

from passerelle.a2a_mapping.dialects.pause import DecidedQuestion
from passerelle.a2a_mapping.dialects.registry import detect, encode
from passerelle.core.approval.prompt import PeerAnswer
from passerelle.core.wire.json import Json, JsonObject


def confirm(number: int, tool: str = "delete_rows", *nested: str, **args: Json) -> JsonObject:
    """A call that waits, or one of an agent that waits for the calls ``nested``."""
    wanted: JsonObject = {"id": f"call-{number}", "name": tool, "args": args}
    asked: JsonObject = {"hint": "", "confirmed": False}
    if nested:
        parts: list[Json] = [
            {"originalFunctionCall": {"id": name, "name": "delete_pod", "args": {}}}
            for name in nested
        ]
        asked["payload"] = {"hitl_parts": parts}
    inner: JsonObject = {"originalFunctionCall": wanted, "toolConfirmation": asked}
    data: JsonObject = {"id": f"adk-{number}", "name": "adk_request_confirmation", "args": inner}
    return {
        "data": data,
        "metadata": {"kagent_type": "function_call", "kagent_is_long_running": True},
    }


def ask(*parts: JsonObject) -> JsonObject:
    message: JsonObject = {"messageId": "m1", "parts": [*parts]}
    return {"id": "T", "status": {"state": "TASK_STATE_INPUT_REQUIRED", "message": message}}


def decide(*allowed: bool, parts: tuple[JsonObject, ...], reason: str | None = None) -> Json:
    """What is sent to the agent; None cancels its task."""
    replies = [
        DecidedQuestion(prompt, PeerAnswer(allowed=one, text=reason), f"dec_{place}")
        for place, (prompt, one) in enumerate(
            zip(detect("peer", ask(*parts)), allowed, strict=True)
        )
    ]
    message = encode(replies, "T", "C")
    return None if message is None else message["parts"]


@pytest.mark.requirement("DIA-5")
def test_direct_calls_that_are_decided_differently_are_named_each() -> None:
    sent = decide(True, False, parts=(confirm(1), confirm(2)), reason="too many")
    assert sent == [
        {
            "data": {
                "decision_type": "batch",
                "decisions": {"call-1": "approve", "call-2": "reject"},
                "rejection_reasons": {"call-2": "too many"},
            }
        }
    ]


@pytest.mark.requirement("DIA-5")
@pytest.mark.parametrize(
    "parts",
    [
        pytest.param((confirm(1, "agent", "pod-1", "pod-2"),), id="two calls of one agent"),
        pytest.param((confirm(1), confirm(2, "agent", "pod-1")), id="a call, and one of an agent"),
    ],
)
def test_mixed_decisions_about_calls_of_another_agent_cancel_the_task(
    parts: tuple[JsonObject, ...],
) -> None:
    """The agent approves each call that a batch does not name, and knows some of them by other names."""
    assert decide(True, False, parts=parts) is None
    assert decide(True, True, parts=parts) == [{"data": {"decision_type": "approve"}}]
    refused: JsonObject = {"decision_type": "reject", "rejection_reason": "no"}
    assert decide(False, False, parts=parts, reason="no") == [{"data": refused}]


@pytest.mark.requirement("DIA-5")
@pytest.mark.parametrize(
    "parts",
    [
        pytest.param((confirm(1), confirm(2, "ask_user")), id="a question beside a call"),
        pytest.param((confirm(1), confirm(1)), id="the same call twice"),
        pytest.param((confirm(1, ""),), id="a call without a name"),
        pytest.param((confirm(1, "ask_user"),), id="no questions"),
        pytest.param(
            (confirm(1), {**confirm(2), "data": {"id": "adk-2", "name": "adk_request_credential"}}),
            id="another kind of call",
        ),
    ],
)
def test_pause_that_cannot_be_read_completely_is_a_question_in_text(
    parts: tuple[JsonObject, ...],
) -> None:
    assert [prompt.dialect for prompt in detect("peer", ask(*parts))] == ["plain_text"]


@pytest.mark.requirement("DIA-5")
def test_calls_that_do_not_wait_are_no_questions() -> None:
    running = confirm(1)
    running["metadata"] = {"kagent_type": "function_call"}
    [prompt] = detect("peer", ask(running, confirm(2)))
    assert (prompt.dialect, prompt.native_id) == ("kagent_parts", "call-2")
