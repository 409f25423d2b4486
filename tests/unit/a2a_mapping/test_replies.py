"""The shapes of agents' replies."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from passerelle.a2a_mapping.replies import (
    ArtifactReply,
    MalformedReply,
    MessageReply,
    StatusReply,
    TaskReply,
    read_native_ids,
    read_reply,
    read_task_reply,
)
from passerelle.core.wire.json import Json, JsonObject

TASK: JsonObject = {"id": "t", "contextId": "c", "status": {"state": "TASK_STATE_WORKING"}}
STATUS: JsonObject = {"taskId": "t", "status": {"state": "TASK_STATE_DONE"}}
ARTIFACT: JsonObject = {"taskId": "t", "contextId": "c", "artifact": {"artifactId": "a"}}


@pytest.mark.requirement("A2A-9")
def test_the_four_kinds_of_replies_are_distinguished() -> None:
    message: JsonObject = {"messageId": "m", "parts": []}
    assert read_reply({"task": TASK}) == TaskReply(TASK)
    assert read_reply({"message": message}) == MessageReply(message)
    assert read_reply({"statusUpdate": STATUS}) == StatusReply(STATUS)
    assert read_reply({"artifactUpdate": ARTIFACT}) == ArtifactReply(ARTIFACT)


def test_a_task_may_come_with_history_and_artifacts() -> None:
    task: JsonObject = {**TASK, "history": [{"messageId": "m"}], "artifacts": []}
    assert read_reply({"task": task}) == TaskReply(task)


@pytest.mark.requirement("A2A-7", "ST-20")
@pytest.mark.parametrize("state", ["TASK_STATE_WORKING", "TASK_STATE_DONE", "working", "?"])
def test_the_raw_state_is_kept_whatever_it_is(state: str) -> None:
    task = read_task_reply({"id": "t", "status": {"state": state}})
    assert isinstance(task, TaskReply)
    assert task.native_status == state
    update = read_reply({"statusUpdate": {"taskId": "t", "status": {"state": state}}})
    assert isinstance(update, StatusReply)
    assert update.native_status == state


@pytest.mark.requirement("A2A-3", "A2A-4")
def test_the_ids_of_the_peer_are_read_from_every_answer() -> None:
    assert read_native_ids(TaskReply(TASK)) == ("t", "c")
    assert read_native_ids(StatusReply(STATUS)) == ("t", "")
    assert read_native_ids(ArtifactReply(ARTIFACT)) == ("t", "c")


@pytest.mark.parametrize(
    ("value", "names"),
    [
        (None, "object"),
        ([], "object"),
        ({}, "exactly one"),
        ({"task": None}, "exactly one"),
        ({"task": TASK, "message": {"messageId": "m"}}, "exactly one"),
        ({"task": "x"}, "task"),
        ({"task": {"status": {"state": "x"}}}, "task.id"),
        ({"task": {"id": 5, "status": {"state": "x"}}}, "task.id"),
        ({"task": {"id": "t"}}, "task.status.state"),
        ({"task": {"id": "t", "status": "x"}}, "task.status.state"),
        ({"task": {**TASK, "history": {}}}, "task.history"),
        ({"task": {**TASK, "artifacts": ["x"]}}, "task.artifacts"),
        ({"message": {"parts": []}}, "message.messageId"),
        ({"message": {"messageId": "m", "parts": "x"}}, "message.parts"),
        ({"statusUpdate": {"status": {"state": "x"}}}, "statusUpdate.taskId"),
        ({"statusUpdate": {"taskId": "t", "status": {}}}, "statusUpdate.status.state"),
        ({"artifactUpdate": {"artifact": {"artifactId": "a"}}}, "artifactUpdate.taskId"),
        ({"artifactUpdate": {"taskId": "t"}}, "artifactUpdate.artifact.artifactId"),
        (
            {"artifactUpdate": {"taskId": "t", "artifact": {"artifactId": "a", "parts": 1}}},
            "artifactUpdate.artifact.parts",
        ),
    ],
)
def test_a_malformed_reply_names_the_field(value: Json, names: str) -> None:
    reply = read_reply(value)
    assert isinstance(reply, MalformedReply)
    assert names in reply.reason


_json: st.SearchStrategy[Json] = st.recursive(
    st.none() | st.booleans() | st.text(max_size=3),
    lambda below: (
        st.lists(below, max_size=2)
        | st.dictionaries(
            st.sampled_from(["task", "message", "statusUpdate", "id", "status", "state", "parts"]),
            below,
            max_size=3,
        )
    ),
    max_leaves=10,
)


@given(_json)
def test_any_json_is_a_reply_or_malformed(value: Json) -> None:
    read_reply(value)
    read_task_reply(value)
