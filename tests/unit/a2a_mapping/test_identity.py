"""Ids: no id of an agent reaches a caller, and no facade id an agent."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from passerelle.a2a_mapping.extensions import AFTER, REFERENCE
from passerelle.a2a_mapping.history import same_message
from passerelle.a2a_mapping.identity import PLACES, make_relabel, relabel, relabel_message
from passerelle.a2a_mapping.outbound import (
    RemoteAddress,
    address_send,
    describe_artifact,
    quote_artifact,
)
from passerelle.a2a_mapping.replies import (
    ArtifactReply,
    MessageReply,
    StatusReply,
    TaskReply,
)
from passerelle.core.ports.blobs import UPLOADED
from passerelle.core.wire.json import Json, JsonObject
from tests.unit.a2a_mapping.samples import list_texts

REMOTE_TASK = "MARK-task-7f3a"
REMOTE_CONTEXT = "MARK-ctx-91bc"
OTHER_TASK = "MARK-task-other"
IDS = make_relabel(
    "task_here",
    "ctx_here",
    {REMOTE_TASK: "task_here", REMOTE_CONTEXT: "ctx_here", OTHER_TASK: "task_there"},
)

_marked = st.sampled_from(
    ["plain", REMOTE_TASK, f"see {REMOTE_TASK}!", f"{REMOTE_CONTEXT}/{OTHER_TASK}", ""]
)
_json = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | _marked,
    lambda below: st.lists(below, max_size=3) | st.dictionaries(_marked, below, max_size=3),
    max_leaves=8,
)
_parts = st.lists(
    st.builds(dict[str, Json], text=_marked) | st.builds(dict[str, Json], data=_json), max_size=3
)
_messages = st.fixed_dictionaries(
    {"messageId": _marked, "role": st.just("ROLE_AGENT"), "parts": _parts},
    optional={
        "taskId": _marked,
        "contextId": _marked,
        "metadata": st.dictionaries(_marked, _json, max_size=2),
        "referenceTaskIds": st.lists(_marked, max_size=3),
    },
)
_statuses = st.fixed_dictionaries(
    {"state": st.just("TASK_STATE_WORKING")}, optional={"message": _messages}
)
_artifacts = st.fixed_dictionaries(
    {"artifactId": _marked, "parts": _parts}, optional={"name": _marked, "metadata": _json}
)
_tasks = st.fixed_dictionaries(
    {"id": _marked, "contextId": _marked, "status": _statuses},
    optional={
        "artifacts": st.lists(_artifacts, max_size=2),
        "history": st.lists(_messages, max_size=2),
        "metadata": _json,
        "future": _json,
    },
)
_replies = st.one_of(
    st.builds(TaskReply, _tasks),
    st.builds(MessageReply, _messages),
    st.builds(
        StatusReply,
        st.fixed_dictionaries({"taskId": _marked, "status": _statuses}, optional={"x": _json}),
    ),
    st.builds(
        ArtifactReply,
        st.fixed_dictionaries({"taskId": _marked, "artifact": _artifacts, "append": st.booleans()}),
    ),
)


def relabel_as_driven(
    reply: TaskReply | MessageReply | StatusReply | ArtifactReply,
) -> JsonObject:
    match reply:
        case TaskReply(task):
            return relabel(task, "Task", IDS)
        case MessageReply(message):
            return relabel_message(message, IDS)
        case StatusReply(event):
            return relabel(event, "TaskStatusUpdateEvent", IDS)
        case ArtifactReply(event):
            return relabel(event, "TaskArtifactUpdateEvent", IDS)


@pytest.mark.requirement("A2A-12")
@given(_replies)
def test_relabelling_leaves_no_remote_id_anywhere(
    reply: TaskReply | MessageReply | StatusReply | ArtifactReply,
) -> None:
    assert not [text for text in list_texts(relabel_as_driven(reply)) if "MARK" in text]


@given(_tasks)
def test_relabelling_twice_is_relabelling_once(task: JsonObject) -> None:
    ours = ("task_here", "ctx_here", "task_there")
    once = relabel(task, "Task", IDS)
    assert relabel(once, "Task", make_relabel(*ours[:2], {name: name for name in ours})) == once


def test_every_place_gets_the_facade_id() -> None:
    message: JsonObject = {"messageId": "m", "taskId": REMOTE_TASK, "contextId": REMOTE_CONTEXT}
    ours: JsonObject = {"messageId": "m", "taskId": "task_here", "contextId": "ctx_here"}
    task: JsonObject = {
        "id": REMOTE_TASK,
        "contextId": REMOTE_CONTEXT,
        "status": {"state": "TASK_STATE_WORKING", "message": message},
        "history": [message, message],
    }
    assert relabel(task, "Task", IDS) == {
        "id": "task_here",
        "contextId": "ctx_here",
        "status": {"state": "TASK_STATE_WORKING", "message": ours},
        "history": [ours, ours],
    }


def test_an_id_that_the_peer_never_named_before_is_replaced_at_its_places_too() -> None:
    event: JsonObject = {"taskId": "surprise", "status": {"message": {"taskId": "surprise2"}}}
    assert relabel(event, "TaskStatusUpdateEvent", IDS) == {
        "taskId": "task_here",
        "contextId": "ctx_here",
        "status": {"message": {"taskId": "task_here"}},
    }


def test_an_absent_context_is_filled_in_where_it_is_required() -> None:
    assert relabel({"taskId": "x"}, "TaskArtifactUpdateEvent", IDS)["contextId"] == "ctx_here"
    assert "contextId" not in relabel({"messageId": "m"}, "Message", IDS)


def test_a_bare_message_has_our_context_and_no_task() -> None:
    message: JsonObject = {"messageId": "m", "taskId": REMOTE_TASK, "parts": []}
    assert relabel_message(message, IDS) == {"messageId": "m", "parts": [], "contextId": "ctx_here"}


def test_a_member_of_another_type_than_it_should_be_is_searched_too() -> None:
    task: JsonObject = {
        "id": "t",
        "contextId": "c",
        "status": REMOTE_TASK,
        "history": [REMOTE_TASK],
    }
    assert relabel(task, "Task", IDS) == {
        "id": "task_here",
        "contextId": "ctx_here",
        "status": "task_here",
        "history": ["task_here"],
    }


def test_references_are_translated_and_unknown_ones_dropped() -> None:
    message: JsonObject = {"messageId": "m", "referenceTaskIds": [OTHER_TASK, "nobody", 5]}
    assert relabel(message, "Message", IDS)["referenceTaskIds"] == ["task_there"]
    unknown: JsonObject = {"messageId": "m", "referenceTaskIds": ["nobody"]}
    assert "referenceTaskIds" not in relabel(unknown, "Message", IDS)


def test_an_artifact_id_made_from_a_task_id_stays_one_id() -> None:
    event: JsonObject = {"taskId": REMOTE_TASK, "artifact": {"artifactId": f"{REMOTE_TASK}-1"}}
    artifact = relabel(event, "TaskArtifactUpdateEvent", IDS)["artifact"]
    assert artifact == {"artifactId": "task_here-1"}


def test_base64_content_and_numbers_are_not_touched() -> None:
    artifact: JsonObject = {
        "artifactId": "a",
        "parts": [{"raw": REMOTE_TASK}, {"data": {"n": 2**60, "f": 1.5}}],
    }
    event: JsonObject = {"taskId": "t", "artifact": artifact}
    assert relabel(event, "TaskArtifactUpdateEvent", IDS)["artifact"] == artifact


def test_a_short_id_is_replaced_only_in_members_that_hold_ids() -> None:
    ids = make_relabel("task_here", "ctx_here", {"7": "task_here", "a": "ctx_here"})
    task: JsonObject = {
        "id": "7",
        "contextId": "a",
        "status": {"state": "TASK_STATE_WORKING", "message": {"parts": [{"text": "a 7"}]}},
    }
    assert relabel(task, "Task", ids) == {
        "id": "task_here",
        "contextId": "ctx_here",
        "status": {"state": "TASK_STATE_WORKING", "message": {"parts": [{"text": "a 7"}]}},
    }


def test_an_id_that_begins_like_another_is_replaced_whole() -> None:
    ids = make_relabel("T", "C", {"job-12345": "T", "job-123456": "U"})
    assert ids.scrub("job-123456 after job-12345") == "U after T"


@pytest.mark.requirement("A2A-12")
def test_two_peers_may_use_one_id() -> None:
    first = make_relabel("task_one", "ctx_one", {"same-task-id": "task_one"})
    second = make_relabel("task_two", "ctx_two", {"same-task-id": "task_two"})
    task: JsonObject = {"id": "same-task-id", "status": {"state": "TASK_STATE_WORKING"}}
    assert relabel(task, "Task", first)["id"] == "task_one"
    assert relabel(task, "Task", second)["id"] == "task_two"


def test_every_kind_that_a_place_leads_to_is_listed() -> None:
    leads = {kind for places in PLACES.values() for kind in places.members.values()}
    assert leads <= set(PLACES)


def test_a_message_reaches_the_peer_unchanged_but_for_ids() -> None:
    message: JsonObject = {
        "messageId": "m",
        "role": "ROLE_USER",
        "parts": [{"data": {"taskId": "task_here", "n": 2**60}}],
        "metadata": {"contextId": "ctx_here"},
        "future": [1],
        "taskId": "task_here",
        "contextId": "ctx_here",
        "referenceTaskIds": ["task_there", "task_elsewhere"],
    }
    params: JsonObject = {"message": message, "metadata": {"a": 1}, "tenant": "ours", "x": 2}
    to = RemoteAddress("RC", "RT", "theirs", {"task_there": OTHER_TASK})
    assert address_send(params, to) == {
        "message": message | {"taskId": "RT", "contextId": "RC", "referenceTaskIds": [OTHER_TASK]},
        "metadata": {"a": 1},
        "tenant": "theirs",
        "x": 2,
    }


def test_the_first_message_to_an_agent_has_no_facade_ids() -> None:
    message: JsonObject = {"messageId": "m", "contextId": "ctx", "referenceTaskIds": ["task"]}
    assert address_send({"message": message}, RemoteAddress()) == {"message": {"messageId": "m"}}


def test_the_configuration_goes_on_without_what_is_served_here() -> None:
    params: JsonObject = {
        "message": {},
        "configuration": {
            "historyLength": 0,
            "acceptedOutputModes": ["text/plain"],
            "taskPushNotificationConfig": {"url": "http://caller"},
        },
    }
    sent = address_send(params, RemoteAddress())
    assert sent["configuration"] == {"acceptedOutputModes": ["text/plain"]}


@pytest.mark.requirement("LT-10")
def test_artifacts_of_a_reference_go_along_marked_and_count_for_no_other_message() -> None:
    part: JsonObject = {"text": "made", "metadata": {"kept": True}}
    quoted = quote_artifact({"name": "plan", "parts": [part]}, 2) or []
    assert quoted == [
        {
            "text": "made",
            "metadata": {"kept": True, REFERENCE: {"reference": 2, "artifact": "plan"}},
        }
    ]
    message: JsonObject = {"messageId": "m", "parts": [{"text": "mine"}]}
    sent = address_send({"message": message}, RemoteAddress(parts=tuple(quoted)))["message"]
    assert isinstance(sent, dict)
    assert sent["parts"] == [{"text": "mine"}, *quoted]
    assert same_message(message, sent)
    assert message["parts"] == [{"text": "mine"}], "the caller's message stays as it was"


@pytest.mark.requirement("LT-18")
def test_prerequisites_of_a_message_are_not_sent_to_the_agent() -> None:
    metadata: JsonObject = {"kept": {"a": 1}, AFTER: ["task_here"]}
    message: JsonObject = {"messageId": "m", "parts": [{"text": "mine"}], "metadata": metadata}
    sent = address_send({"message": message}, RemoteAddress())["message"]
    assert sent == {**message, "metadata": {"kept": {"a": 1}}}
    assert AFTER in metadata, "the caller's message stays as it was"


@pytest.mark.requirement("LT-10")
def test_artifact_behind_an_address_goes_along_with_it_unless_its_agent_alone_has_it() -> None:
    parts: list[Json] = [{"text": "made"}, {"url": "https://agent.example/file", "filename": "f"}]
    quoted = quote_artifact({"parts": parts}, 0) or []
    mark = {"metadata": {REFERENCE: {"reference": 0}}}
    assert quoted == [{"text": "made", **mark}, {**parts[1], **mark}]  # type: ignore[dict-item]
    assert quote_artifact({"parts": [{"url": f"{UPLOADED}{'0' * 64}"}]}, 0) is None
    assert quote_artifact({}, 0) == []


@pytest.mark.requirement("LT-10")
def test_artifact_that_does_not_go_along_is_described_with_the_reason() -> None:
    traits: JsonObject = {"name": "plan", "size": 9, "sha256": "ab", "version": 2, "mediaTypes": []}
    assert describe_artifact(traits, 3, "too_large") == {
        "data": traits,
        "mediaType": "application/json",
        "metadata": {REFERENCE: {"reference": 3, "omitted": "too_large", "artifact": "plan"}},
    }
    del traits["name"]
    mark = {"reference": 3, "omitted": "missing"}
    assert describe_artifact(traits, 3, "missing")["metadata"] == {REFERENCE: mark}


@pytest.mark.parametrize(
    "native", ['a"quoted\\id', "an\tid\nof\x00lines", "übergröße-✓-𝄞", "half-\ud800-pair"]
)
def test_id_of_any_characters_is_replaced_inside_texts_and_names(native: str) -> None:
    ids = make_relabel("task_here", "ctx_here", {native: "task_here"})
    message: JsonObject = {
        "messageId": f"of {native}",
        "metadata": {f"<{native}>": [{"deep": f"{native}{native}"}]},
    }
    assert relabel(message, "Message", ids) == {
        "messageId": "of task_here",
        "metadata": {"<task_here>": [{"deep": "task_heretask_here"}]},
    }
