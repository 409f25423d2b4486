"""Requests: which members are read, which are refused, and which pass unchanged."""

from __future__ import annotations

from typing import cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from passerelle.a2a_mapping.inbound import read_list, read_query, read_send, read_task
from passerelle.core.errors import InvalidInput, PasserelleError
from passerelle.core.wire.json import Json, JsonObject
from tests.unit.a2a_mapping.samples import combine


def _params(**message: Json) -> JsonObject:
    whole: JsonObject = {"messageId": "m1", "role": "ROLE_USER", "parts": [{"text": "hi"}]}
    return {"message": combine(whole, message)}


def _refused(params: JsonObject) -> str:
    with pytest.raises(InvalidInput) as caught:
        read_send(params)
    return caught.value.field


@pytest.mark.requirement("A2A-9")
def test_a_message_gives_what_decides_its_way() -> None:
    message = _params(taskId="t", contextId="c", referenceTaskIds=["r"], extensions=["urn:x"])
    configuration: JsonObject = {
        "historyLength": 3,
        "returnImmediately": True,
        "acceptedOutputModes": ["text/plain"],
    }
    request = read_send(combine(message, {"configuration": configuration}))
    assert (request.message_id, request.task_id, request.context_id) == ("m1", "t", "c")
    assert (request.reference_task_ids, request.extensions) == (("r",), ("urn:x",))
    assert (request.history_length, request.blocking) == (3, False)
    assert request.accepted_output_modes == ("text/plain",)


@pytest.mark.parametrize(
    ("name", "said", "member", "read"),
    [
        ("taskId", "t", "task_id", "t"),
        ("contextId", "c", "context_id", "c"),
        ("referenceTaskIds", ["r"], "reference_task_ids", ("r",)),
        ("extensions", ["urn:x"], "extensions", ("urn:x",)),
    ],
)
def test_each_member_of_a_message_is_read_on_its_own(
    name: str, said: Json, member: str, read: object
) -> None:
    assert getattr(read_send(_params(**{name: said})), member) == read


def test_sending_waits_by_default() -> None:
    assert read_send(_params()).blocking
    assert read_send(combine(_params(), {"configuration": {"blocking": False}})).blocking


def test_unknown_fields_are_kept() -> None:
    params = combine(
        _params(someday={"a": [1, 2.5, None]}, metadata={"task_id": 2**60}), {"future": 1}
    )
    kept = read_send(params).params
    assert kept == params


def test_snake_case_is_read_as_camel_case() -> None:
    snake: JsonObject = {
        "message": {
            "message_id": "m1",
            "context_id": "c",
            "task_id": "t",
            "reference_task_ids": ["r"],
            "role": "ROLE_USER",
            "parts": [{"raw": "aGk=", "media_type": "text/plain"}],
        },
        "configuration": {"history_length": "2", "return_immediately": True},
    }
    request = read_send(snake)
    assert (request.task_id, request.context_id, request.message_id) == ("t", "c", "m1")
    assert (request.history_length, request.return_immediately) == (2, True)
    parts = cast("list[JsonObject]", request.message["parts"])
    assert parts[0] == {"raw": "aGk=", "mediaType": "text/plain"}


def test_names_inside_metadata_and_data_are_not_touched() -> None:
    data: JsonObject = {"media_type": 1, "task_id": {"message_id": 2}}
    request = read_send(_params(parts=[{"data": data}], metadata=data))
    assert request.message["parts"] == [{"data": data}]
    assert request.message["metadata"] == data


def test_one_field_in_both_spellings_is_refused() -> None:
    assert _refused(_params(task_id="a", taskId="b")) == "message.taskId"


@pytest.mark.parametrize("empty", [None, ""])
def test_null_and_empty_read_as_absent(empty: str | None) -> None:
    request = read_send(_params(taskId=empty, contextId=empty))
    assert (request.task_id, request.context_id) == (None, None)


@pytest.mark.parametrize(
    ("message", "field"),
    [
        ({"messageId": None}, "message.messageId"),
        ({"messageId": ""}, "message.messageId"),
        ({"messageId": 5}, "message.messageId"),
        ({"messageId": "m" * 1025}, "message.messageId"),
        ({"role": None}, "message.role"),
        ({"role": "user"}, "message.role"),
        ({"role": "ROLE_AGENT"}, "message.role"),
        ({"parts": None}, "message.parts"),
        ({"parts": []}, "message.parts"),
        ({"parts": {"text": "x"}}, "message.parts"),
        ({"parts": ["x"]}, "message.parts[0]"),
        ({"parts": [{"text": "x"}, {}]}, "message.parts[1]"),
        ({"parts": [{"text": "x", "url": "http://x"}]}, "message.parts[0]"),
        ({"parts": [{"text": None}]}, "message.parts[0]"),
        ({"parts": [{"kind": "text", "body": "x"}]}, "message.parts[0]"),
        ({"parts": [{"text": 5}]}, "message.parts[0].text"),
        ({"parts": [{"raw": [1]}]}, "message.parts[0].raw"),
        ({"taskId": 5}, "message.taskId"),
        ({"contextId": ["c"]}, "message.contextId"),
        ({"referenceTaskIds": "r"}, "message.referenceTaskIds"),
        ({"referenceTaskIds": [1]}, "message.referenceTaskIds"),
        ({"metadata": "x"}, "message.metadata"),
    ],
)
def test_a_bad_message_is_refused_with_the_field_named(message: JsonObject, field: str) -> None:
    assert _refused(_params(**message)) == field


@pytest.mark.parametrize(
    ("configuration", "field"),
    [
        ("x", "configuration"),
        ({"historyLength": -1}, "configuration.historyLength"),
        ({"historyLength": 1.5}, "configuration.historyLength"),
        ({"historyLength": True}, "configuration.historyLength"),
        ({"historyLength": 2**31}, "configuration.historyLength"),
        ({"returnImmediately": 1}, "configuration.returnImmediately"),
        ({"acceptedOutputModes": [1]}, "configuration.acceptedOutputModes"),
    ],
)
def test_a_bad_configuration_is_refused_with_the_field_named(
    configuration: Json, field: str
) -> None:
    assert _refused(combine(_params(), {"configuration": configuration})) == field


@pytest.mark.parametrize("message", [None, "x", []])
def test_a_request_without_a_message_is_refused(message: Json) -> None:
    assert _refused({"message": message}) == "message"


def test_a_null_is_a_value_of_a_data_part() -> None:
    assert read_send(_params(parts=[{"data": None}])).message["parts"] == [{"data": None}]


def test_a_push_config_that_comes_with_a_message_is_read() -> None:
    config: JsonObject = {"url": "http://x"}
    for name in ("taskPushNotificationConfig", "task_push_notification_config"):
        read = read_send(combine(_params(), {"configuration": {name: config}}))
        assert read.push == config
    assert read_send(_params()).push is None


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=4),
    lambda below: (
        st.lists(below, max_size=3)
        | st.dictionaries(
            st.sampled_from(["message", "parts", "role", "text", "task_id", "metadata"]),
            below,
            max_size=4,
        )
    ),
    max_leaves=12,
)


@given(st.dictionaries(st.sampled_from(["message", "configuration"]), _JSON))
def test_any_params_are_read_or_refused(params: JsonObject) -> None:
    try:
        read_send(params)
    except PasserelleError:
        return


def test_a_task_is_named_by_its_id() -> None:
    request = read_task({"id": "t", "history_length": "0", "metadata": {"a": 1}})
    assert (request.id, request.history_length, request.metadata) == ("t", 0, {"a": 1})


@pytest.mark.parametrize(
    ("params", "field"),
    [({}, "id"), ({"id": 5}, "id"), ({"id": "t", "historyLength": -1}, "historyLength")],
)
def test_a_bad_task_request_is_refused(params: JsonObject, field: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        read_task(params)
    assert caught.value.field == field


def test_a_list_has_defaults() -> None:
    request = read_list({})
    assert (request.page_size, request.page_token, request.state) == (50, None, None)
    assert (request.after_ms, request.include_artifacts, request.history_length) == (
        None,
        False,
        None,
    )


def test_a_query_reads_like_params() -> None:
    query = {
        "contextId": "c",
        "status": "TASK_STATE_WORKING",
        "pageSize": "100",
        "pageToken": "p",
        "historyLength": "0",
        "statusTimestampAfter": "1970-01-01T00:00:01.500Z",
        "includeArtifacts": "true",
    }
    request = read_list(read_query(query))
    assert (request.context_id, request.state, request.page_size) == (
        "c",
        "TASK_STATE_WORKING",
        100,
    )
    assert (request.page_token, request.history_length, request.after_ms) == ("p", 0, 1500)
    assert request.include_artifacts


def test_an_empty_query_parameter_is_absent() -> None:
    assert read_query({"id": "t", "contextId": ""}) == {"id": "t"}


def test_an_unspecified_state_is_no_filter() -> None:
    assert read_list({"status": "TASK_STATE_UNSPECIFIED"}).state is None


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("pageSize", 0),
        ("pageSize", 101),
        ("pageSize", "many"),
        ("pageSize", "１"),  # noqa: RUF001 - a digit that is not ASCII
        ("pageToken", 5),
        ("status", "working"),
        ("statusTimestampAfter", "yesterday"),
        ("statusTimestampAfter", "2026-01-01T00:00:00"),
        ("includeArtifacts", "yes"),
        ("historyLength", -1),
        ("contextId", {}),
    ],
)
def test_a_bad_list_parameter_is_refused(name: str, value: Json) -> None:
    with pytest.raises(InvalidInput) as caught:
        read_list({name: value})
    assert caught.value.field == name


@pytest.mark.parametrize("text", ["2026-01-01T01:00:00+01:00", "2026-01-01T01:00:00 01:00"])
def test_a_time_may_have_an_offset_even_one_whose_plus_was_lost(text: str) -> None:
    expected = read_list({"statusTimestampAfter": "2026-01-01T00:00:00Z"}).after_ms
    assert read_list({"statusTimestampAfter": text}).after_ms == expected


@pytest.mark.parametrize(
    ("params", "said"),
    [
        ({}, "message: is required"),
        ({"mesage": {}}, "message: is required; is 'mesage' meant?"),
        ({"tenant": "a"}, "message: is required"),
        (
            {"message": {"messageID": "m", "role": "ROLE_USER", "parts": [{"text": "a"}]}},
            "message.messageId: is required; is 'messageID' meant?",
        ),
    ],
)
def test_the_error_for_a_missing_member_names_a_similar_one(params: JsonObject, said: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        read_send(params)
    assert str(refused.value) == said
