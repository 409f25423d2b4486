"""Calls of 0.3 read as those of 1.0, in every spelling that callers use."""

from __future__ import annotations

import pytest

from passerelle.a2a_mapping.inbound import read_send
from passerelle.a2a_mapping.rpc import Method
from passerelle.a2a_mapping.v0_3.calls import METHODS, NAMES, read_call, write_params
from passerelle.a2a_mapping.v0_3.forms import Form
from passerelle.a2a_mapping.v0_3.responses import ends_stream, write_response
from passerelle.core.errors import NotFound
from passerelle.core.wire.json import Json, JsonObject

BIG = 2**53 + 1


def test_every_operation_but_the_list_of_tasks_has_a_name_in_0_3() -> None:
    assert set(METHODS.values()) == set(Method) - {Method.LIST_TASKS}
    assert NAMES[Method.SEND_MESSAGE] == "message/send"


@pytest.mark.requirement("LT-15")
def test_message_with_kind_parts_is_a_1_0_message() -> None:
    params: JsonObject = {
        "message": {
            "kind": "message",
            "role": "user",
            "messageId": "m",
            "taskId": None,
            "parts": [
                {"kind": "text", "text": "a sailboat"},
                {"kind": "data", "data": {"n": BIG}},
                {"kind": "file", "file": {"bytes": "AA==", "mimeType": "image/png", "name": "b"}},
                {"kind": "file", "file": {"uri": "https://x.example/"}},
            ],
        }
    }
    call = read_call(METHODS["message.send"], params, Form.KIND)
    assert call.method is Method.SEND_MESSAGE
    assert read_send(call.params).message == {
        "role": "ROLE_USER",
        "messageId": "m",
        "parts": [
            {"text": "a sailboat"},
            {"data": {"n": BIG}},
            {"raw": "AA==", "mediaType": "image/png", "filename": "b"},
            {"url": "https://x.example/"},
        ],
    }


@pytest.mark.parametrize(
    "message",
    [
        {"message_id": "m", "role": "ROLE_USER", "content": [{"data": {"data": {"a": 1}}}]},
        {"messageId": "m", "role": "user", "parts": [{"kind": "data", "data": {"a": 1}}]},
    ],
)
@pytest.mark.parametrize("holder", ["message", "request"])
def test_http_json_takes_either_spelling(holder: str, message: JsonObject) -> None:
    read = read_send(read_call(Method.SEND_MESSAGE, {holder: message}, Form.PROTO).params)
    assert read.message == {
        "messageId": "m",
        "role": "ROLE_USER",
        "parts": [{"data": {"a": 1}}],
    }


def test_data_that_has_a_member_data_is_not_taken_for_a_wrapper() -> None:
    part: Json = {"kind": "data", "data": {"data": {"a": 1}}}
    message: JsonObject = {"messageId": "m", "role": "user", "parts": [part]}
    for form in Form:
        read = read_send(read_call(Method.SEND_MESSAGE, {"message": message}, form).params)
        assert read.message["parts"] == [{"data": {"data": {"a": 1}}}]


@pytest.mark.parametrize(
    ("configuration", "at_once"),
    [({}, False), ({"blocking": True}, False), ({"blocking": False}, True)],
)
def test_send_blocks_by_default(configuration: JsonObject, *, at_once: bool) -> None:
    message: JsonObject = {"messageId": "m", "role": "user", "parts": [{"text": "x"}]}
    params: JsonObject = {"message": message, "configuration": configuration}
    for form in Form:
        read = read_send(read_call(Method.SEND_MESSAGE, params, form).params)
        assert read.return_immediately is at_once


def test_history_length_of_zero_is_no_limit() -> None:
    assert read_call(Method.GET_TASK, {"id": "t", "historyLength": 0}, Form.KIND).params == {
        "id": "t"
    }
    assert read_call(
        Method.GET_TASK, {"name": "tasks/t", "history_length": 2}, Form.PROTO
    ).params == {
        "id": "t",
        "historyLength": 2,
    }


CONFIG: JsonObject = {"id": "c", "url": "https://x.example/", "authentication": {"schemes": ["B"]}}
FLAT: JsonObject = {
    "taskId": "t",
    "id": "c",
    "url": "https://x.example/",
    "authentication": {"scheme": "B"},
}


@pytest.mark.parametrize(
    ("form", "params"),
    [
        (Form.KIND, {"taskId": "t", "pushNotificationConfig": CONFIG}),
        (Form.PROTO, {"taskId": "t", "config": {"pushNotificationConfig": CONFIG}}),
        (Form.PROTO, {"parent": "tasks/t", "config": {"push_notification_config": CONFIG}}),
        (Form.PROTO, {"taskId": "t", "pushNotificationConfig": CONFIG}),
    ],
)
def test_push_config_is_read_in_every_nesting(form: Form, params: JsonObject) -> None:
    call = read_call(Method.CREATE_PUSH_CONFIG, params, form)
    assert call.params == FLAT


@pytest.mark.parametrize("form", [Form.KIND, Form.PROTO])
def test_push_config_for_a_peer_reads_back_as_it_was(form: Form) -> None:
    written = write_params(Method.CREATE_PUSH_CONFIG, FLAT, form)
    assert read_call(Method.CREATE_PUSH_CONFIG, written, form).params == FLAT
    assert written["pushNotificationConfig"] == CONFIG


def test_push_config_is_named_by_its_own_id_or_is_the_first_of_the_task() -> None:
    both: JsonObject = {"id": "t", "pushNotificationConfigId": "c"}
    for method in (Method.GET_PUSH_CONFIG, Method.DELETE_PUSH_CONFIG):
        assert read_call(method, both, Form.KIND).params == {"taskId": "t", "id": "c"}
        name: JsonObject = {"name": "tasks/t/pushNotificationConfigs/c"}
        assert read_call(method, name, Form.PROTO).params == {"taskId": "t", "id": "c"}
    first = read_call(Method.GET_PUSH_CONFIG, {"id": "t"}, Form.KIND)
    assert (first.method, first.params) == (Method.LIST_PUSH_CONFIGS, {"taskId": "t"})
    written = first.write_result({"configs": [FLAT], "nextPageToken": ""})
    assert written == {"taskId": "t", "pushNotificationConfig": CONFIG}
    with pytest.raises(NotFound):
        first.write_result({"configs": []})


def test_lists_of_push_configs_are_bare_in_json_rpc_only() -> None:
    listed = read_call(Method.LIST_PUSH_CONFIGS, {"id": "t"}, Form.KIND)
    nested: Json = {"pushNotificationConfig": CONFIG}
    assert isinstance(nested, dict)
    assert listed.write_result({"configs": [FLAT]}) == [{"taskId": "t", **nested}]
    listed = read_call(Method.LIST_PUSH_CONFIGS, {"taskId": "t"}, Form.PROTO)
    assert listed.write_result({"configs": [FLAT]}) == {
        "configs": [{"name": "tasks/t/pushNotificationConfigs/c", **nested}]
    }
    deleted = read_call(Method.DELETE_PUSH_CONFIG, {"id": "t"}, Form.KIND)
    assert deleted.write_result({}) is None


def test_numbers_stay_what_they_are() -> None:
    task: JsonObject = {
        "id": "t",
        "contextId": "c",
        "status": {"state": "TASK_STATE_WORKING"},
        "metadata": {"n": BIG, "f": 1.0},
    }
    for form in Form:
        written = read_call(Method.GET_TASK, {}, form).write_result(task)
        assert isinstance(written, dict)
        assert repr(written["metadata"]) == repr(task["metadata"])


@pytest.mark.requirement("LT-16")
def test_completed_task_with_a_file_is_what_0_3_shows() -> None:
    task: JsonObject = {
        "id": "t",
        "contextId": "c",
        "status": {"state": "TASK_STATE_COMPLETED"},
        "artifacts": [
            {
                "artifactId": "a",
                "name": "sailboat.png",
                "parts": [{"raw": "AA==", "filename": "sailboat.png", "mediaType": "image/png"}],
            }
        ],
    }
    assert write_response({"task": task}, Form.KIND) == {
        "kind": "task",
        "id": "t",
        "contextId": "c",
        "status": {"state": "completed"},
        "artifacts": [
            {
                "artifactId": "a",
                "name": "sailboat.png",
                "parts": [
                    {
                        "kind": "file",
                        "file": {"bytes": "AA==", "mimeType": "image/png", "name": "sailboat.png"},
                    }
                ],
            }
        ],
    }


def _event(state: str) -> JsonObject:
    return {"statusUpdate": {"taskId": "t", "contextId": "c", "status": {"state": state}}}


@pytest.mark.parametrize(
    ("state", "final"),
    [
        ("TASK_STATE_WORKING", False),
        ("TASK_STATE_AUTH_REQUIRED", False),
        ("TASK_STATE_INPUT_REQUIRED", True),
        ("TASK_STATE_COMPLETED", True),
        ("TASK_STATE_REJECTED", True),
    ],
)
def test_last_status_of_a_turn_is_final_and_ends_its_stream(state: str, *, final: bool) -> None:
    assert write_response(_event(state), Form.KIND)["final"] is final
    assert ends_stream(_event(state), is_first=False, follows_on=True) is final


def test_task_that_was_there_before_its_stream_ends_nothing() -> None:
    waiting: JsonObject = {"task": {"status": {"state": "TASK_STATE_INPUT_REQUIRED"}}}
    assert not ends_stream(waiting, is_first=True, follows_on=True)
    assert ends_stream(waiting, is_first=True, follows_on=False)
    assert ends_stream({"message": {}}, is_first=True, follows_on=False)


def test_params_for_an_agent_always_state_whether_they_block() -> None:
    params: JsonObject = {"message": {"messageId": "m", "role": "ROLE_USER", "parts": []}}
    written = write_params(Method.SEND_MESSAGE, params, Form.KIND)
    assert written["configuration"] == {"blocking": True}
    written = write_params(
        Method.SEND_MESSAGE, {**params, "configuration": {"returnImmediately": True}}, Form.PROTO
    )
    assert written["configuration"] == {"blocking": False}
