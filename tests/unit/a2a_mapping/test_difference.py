"""What is new in an agent's Task after a reconnect."""

from __future__ import annotations

from functools import reduce

import pytest
from hypothesis import given
from hypothesis import strategies as st

from passerelle.a2a_mapping.content import find_artifact, fold
from passerelle.a2a_mapping.difference import list_differences
from passerelle.a2a_mapping.frames import artifact_frame, status_frame, task_frame
from passerelle.a2a_mapping.members import object_at, objects_at
from passerelle.core.wire.json import Json, JsonObject
from tests.unit.a2a_mapping.samples import combine, reply

IDS = ("t", "c")
_words = st.lists(st.sampled_from(["x", "y"]), max_size=4)
_agent_messages = st.builds(
    reply, st.sampled_from(["m1", "m2", "m3"]), st.sampled_from(["one", "two"])
)


def _artifact(name: str, words: list[str], title: str) -> JsonObject:
    return {"artifactId": name, "name": title, "parts": [{"text": word} for word in words]}


def _task(
    state: str, artifacts: list[JsonObject], history: list[JsonObject], **more: Json
) -> JsonObject:
    distinct = {str(item["artifactId"]): item for item in artifacts}
    status: JsonObject = {"state": state}
    status |= {name: value for name, value in more.items() if name in ("timestamp", "message")}
    return {
        "id": "t",
        "contextId": "c",
        "status": status,
        "artifacts": list(distinct.values()),
        "history": list(history),
    }


def _apply(known: JsonObject, frames: list[JsonObject]) -> JsonObject:
    start: JsonObject | None = known
    reached = reduce(fold, frames, start)
    assert reached is not None
    return reached


_tasks = st.builds(
    _task,
    st.sampled_from(["TASK_STATE_WORKING", "TASK_STATE_INPUT_REQUIRED", "TASK_STATE_COMPLETED"]),
    st.lists(
        st.builds(_artifact, st.sampled_from("ab"), _words, st.sampled_from(["T", "U"])), max_size=2
    ),
    st.lists(_agent_messages, max_size=3),
    timestamp=st.sampled_from(["2026-01-01T00:00:00Z", "2026-01-01T00:00:01Z"]),
    message=_agent_messages,
)


@pytest.mark.requirement("A2A-6", "A2A-10")
@given(_tasks, _tasks)
def test_differences_folded_onto_what_is_known_reach_the_peers_task(
    known: JsonObject, fresh: JsonObject
) -> None:
    reached = _apply(known, list_differences(known, fresh))
    status = object_at(reached, "status")
    wanted = object_at(fresh, "status")
    assert (status["state"], status["timestamp"]) == (wanted["state"], wanted["timestamp"])
    assert object_at(status, "message")["messageId"] == object_at(wanted, "message")["messageId"]
    for artifact in objects_at(fresh, "artifacts"):
        assert find_artifact(reached, str(artifact["artifactId"])) == artifact
    said = [*objects_at(reached, "history"), object_at(status, "message")]
    assert all(message in said for message in objects_at(fresh, "history"))


@given(_tasks, _tasks)
def test_a_second_look_finds_nothing_new(known: JsonObject, fresh: JsonObject) -> None:
    reached = _apply(known, list_differences(known, fresh))
    assert list_differences(reached, fresh) == []


@given(_tasks)
def test_nothing_known_is_one_whole_task(fresh: JsonObject) -> None:
    assert list_differences(None, fresh) == [task_frame(fresh)]
    assert list_differences(fresh, fresh) == []


def test_an_artifact_that_grew_is_continued_with_one_append() -> None:
    known = _task("TASK_STATE_WORKING", [_artifact("a", ["x"], "T")], [])
    fresh = _task("TASK_STATE_WORKING", [_artifact("a", ["x", "y", "z"], "T")], [])
    rest: JsonObject = {"artifactId": "a", "parts": [{"text": "y"}, {"text": "z"}]}
    assert list_differences(known, fresh) == [artifact_frame(*IDS, rest, append=True)]


@pytest.mark.parametrize(("words", "title"), [(["y"], "T"), ([], "T"), (["x", "y"], "other")])
def test_an_artifact_that_changed_otherwise_is_sent_whole(words: list[str], title: str) -> None:
    known = _task("TASK_STATE_WORKING", [_artifact("a", ["x"], "T")], [])
    changed = _artifact("a", words, title)
    frames = list_differences(known, _task("TASK_STATE_WORKING", [changed], []))
    assert frames == [artifact_frame(*IDS, changed)]


def test_the_status_comes_after_the_artifacts() -> None:
    known = _task("TASK_STATE_WORKING", [], [])
    fresh = _task("TASK_STATE_COMPLETED", [_artifact("a", ["x"], "T")], [])
    assert [next(iter(frame)) for frame in list_differences(known, fresh)] == [
        "artifactUpdate",
        "statusUpdate",
    ]


def test_messages_that_were_missed_come_before_the_status() -> None:
    said: JsonObject = {"messageId": "m", "role": "ROLE_AGENT", "parts": [{"text": "half"}]}
    mine: JsonObject = {"messageId": "u", "role": "ROLE_USER", "parts": [{"text": "go"}]}
    known = _task("TASK_STATE_WORKING", [], [mine])
    fresh = _task("TASK_STATE_COMPLETED", [], [mine, said])
    assert list_differences(known, fresh) == [
        status_frame(*IDS, {"state": "TASK_STATE_WORKING", "message": said}),
        status_frame(*IDS, {"state": "TASK_STATE_COMPLETED"}),
    ]


def test_new_metadata_comes_with_the_status() -> None:
    known = combine(_task("TASK_STATE_WORKING", [], []), {"metadata": {"a": 1, "b": 1}})
    fresh = combine(_task("TASK_STATE_WORKING", [], []), {"metadata": {"a": 1, "b": 2, "c": None}})
    assert list_differences(known, fresh) == [
        status_frame(*IDS, {"state": "TASK_STATE_WORKING"}, {"b": 2, "c": None})
    ]
