"""A task that waits without a message, as agents of LangGraph show it when they are polled."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Final, cast

import orjson
import pytest

from passerelle.a2a_mapping.dialects.recall import recall
from passerelle.a2a_mapping.dialects.registry import detect
from passerelle.a2a_mapping.replies import ArtifactReply, StatusReply, TaskReply, read_reply
from passerelle.core.payloads.approval import RemotePause
from passerelle.core.peer import Answered
from passerelle.core.wire.json import JsonObject
from passerelle.peers.jsonrpc import JsonRpc

SEEN: Final = cast(
    "JsonObject",
    json.loads((Path(__file__).parents[2] / "vectors/langgraph-api.json").read_text("utf-8")),
)
ANSWER, LOOK = cast("JsonObject", SEEN["answer"]), cast("JsonObject", SEEN["look"])


def list_asked() -> list[RemotePause]:
    return [
        RemotePause(
            one.dialect,
            one.native_id,
            one.occurrence,
            one.native_status,
            one.message_id,
            said_at=one.said_at,
        )
        for one in detect("rows", ANSWER)
    ]


def change_status(task: JsonObject, **members: object) -> JsonObject:
    return cast("JsonObject", {**task, "status": {**cast("JsonObject", task["status"]), **members}})


def test_a_task_that_is_looked_at_again_is_in_the_pause_that_was_seen_before() -> None:
    asked = list_asked()
    [one] = asked
    assert (one.dialect, one.said_at) == ("langgraph", "2026-11-21T21:50:04.694453+00:00")
    assert recall(LOOK, asked) == {one.occurrence}
    assert one.occurrence not in {prompt.occurrence for prompt in detect("rows", LOOK)}


@pytest.mark.parametrize(
    "status",
    [
        {"timestamp": "2026-11-21T21:50:09.000000+00:00"},
        {"state": "TASK_STATE_AUTH_REQUIRED"},
        {"state": "TASK_STATE_WORKING"},
        {"message": {"messageId": "m", "parts": [{"text": "Which table?"}]}},
    ],
    ids=["later", "for something else", "at work", "in words"],
)
def test_a_pause_that_is_another_one_is_not_taken_for_it(status: JsonObject) -> None:
    assert not recall(change_status(LOOK, **status), list_asked())


def test_old_question_of_an_agent_that_always_shows_its_question_is_not_recalled() -> None:
    asked = [replace(one, dialect="plain_text") for one in list_asked()]
    assert not recall(LOOK, asked)


@pytest.mark.parametrize("told", ["", "yesterday"])
def test_an_invalid_timestamp_is_no_new_question(told: str) -> None:
    asked = list_asked()
    assert recall(change_status(LOOK, timestamp=told), asked) == {asked[0].occurrence}


def test_updates_without_their_member_are_read_by_their_kind() -> None:
    wire = JsonRpc()
    read = [
        wire.read_event(orjson.dumps(event)) for event in cast("list[JsonObject]", SEEN["events"])
    ]
    replies = [read_reply(one.result) for one in read if isinstance(one, Answered)]
    kinds = [type(reply) for reply in replies]
    assert kinds == [TaskReply, StatusReply, ArtifactReply, StatusReply]


CALL: Final[JsonObject] = {
    "data": {
        "id": "adk-1",
        "name": "adk_request_confirmation",
        "args": {"originalFunctionCall": {"id": "c", "name": "pay", "args": {}}},
    },
    "metadata": {"adk_type": "function_call", "adk_is_long_running": True},
}


def make_task(asked: JsonObject, *behind: JsonObject) -> tuple[JsonObject, JsonObject]:
    """A task as it asks, and as the Python SDK has it after a message that nothing follows from."""
    said: JsonObject = {"messageId": "q", "role": "ROLE_AGENT", "parts": [asked]}
    status: JsonObject = {"state": "TASK_STATE_INPUT_REQUIRED", "message": said}
    answer: JsonObject = {"messageId": "a", "role": "ROLE_USER", "parts": [{"text": "yes"}]}
    return {"id": "t", "status": status}, {
        "id": "t",
        "status": {"state": "TASK_STATE_INPUT_REQUIRED"},
        "history": [said, answer, *behind],
    }


def recall_later(asked: JsonObject, *behind: JsonObject) -> bool:
    before, after = make_task(asked, *behind)
    found = detect("sdk", before)
    pauses = [
        RemotePause(one.dialect, one.native_id, one.occurrence, one.native_status, one.message_id)
        for one in found
    ]
    return recall(after, pauses) == frozenset(one.occurrence for one in found)


def test_typed_request_that_has_moved_into_the_history_is_still_what_the_task_waits_for() -> None:
    assert recall_later(CALL)


def test_request_behind_which_the_agent_has_spoken_is_not() -> None:
    later: JsonObject = {"messageId": "n", "role": "ROLE_AGENT", "parts": [{"text": "Well."}]}
    assert not recall_later(CALL, later)


def test_question_in_words_that_has_moved_into_the_history_is_not() -> None:
    assert not recall_later({"text": "Which colour?"})
