"""HTTP+JSON as bytes: the requests, and the meaning of each form of an error."""

from __future__ import annotations

import orjson
import pytest

from passerelle.core.peer import Answered, Malformed, RefusedByPeer, Unknown
from passerelle.core.wire.json import JsonObject
from passerelle.peers.call import AgentReply, Operation, PeerCall
from passerelle.peers.http_json import HttpJson
from passerelle.peers.interface import Interface

WIRE = HttpJson()
PLAIN = Interface("HTTP+JSON", "1.0", "https://a.example/base/", "https://a.example")
TENANT = Interface("HTTP+JSON", "1.0", "https://a.example", "https://a.example", "blue team")


@pytest.mark.parametrize(
    ("operation", "params", "verb", "path"),
    [
        ("SendMessage", {"message": {}}, "POST", "/message:send"),
        ("SendStreamingMessage", {"message": {}}, "POST", "/message:stream"),
        ("GetTask", {"id": "t/1", "historyLength": 0}, "GET", "/tasks/t%2F1?historyLength=0"),
        ("GetTask", {"id": "t"}, "GET", "/tasks/t"),
        ("CancelTask", {"id": "t"}, "POST", "/tasks/t:cancel"),
        ("SubscribeToTask", {"id": "t"}, "POST", "/tasks/t:subscribe"),
        (
            "CreateTaskPushNotificationConfig",
            {"taskId": "t/1", "url": "https://b.example"},
            "POST",
            "/tasks/t%2F1/pushNotificationConfigs",
        ),
        (
            "ListTasks",
            {"contextId": "c d", "includeArtifacts": True, "pageToken": "", "pageSize": 5},
            "GET",
            "/tasks?contextId=c+d&includeArtifacts=true&pageSize=5",
        ),
    ],
)
def test_each_operation_has_its_verb_and_path(
    operation: Operation, params: JsonObject, verb: str, path: str
) -> None:
    request = WIRE.write(PLAIN, PeerCall(operation, params, 1), 1)
    assert (request.method, request.url) == (verb, "https://a.example/base" + path)
    assert (request.body is None) == (verb == "GET")


def test_tenant_is_the_first_part_of_the_path() -> None:
    request = WIRE.write(TENANT, PeerCall("GetTask", {"id": "t"}, 1), 1)
    assert request.url == "https://a.example/blue%20team/tasks/t"


@pytest.mark.parametrize("status", [200, 201, 202])
def test_object_under_any_status_of_success_is_the_result(status: int) -> None:
    reply = AgentReply(status, None, b'{"id": "t"}')
    assert WIRE.read(PeerCall("GetTask", {"id": "t"}, 1), 1, reply) == Answered({"id": "t"})


@pytest.mark.parametrize("status", [202, 204])
def test_success_without_a_body_is_no_answer(status: int) -> None:
    reply = AgentReply(status, None, b"")
    assert isinstance(WIRE.read(PeerCall("GetTask", {"id": "t"}, 1), 1, reply), Malformed)


def refuse(body: object, status: int = 400, operation: Operation = "GetTask") -> object:
    reply = AgentReply(status, "7", orjson.dumps(body))
    return WIRE.read(PeerCall(operation, {"id": "t"}, 1), 1, reply)


@pytest.mark.parametrize(
    ("body", "status", "code"),
    [
        (
            {"error": {"code": 404, "message": "no", "details": [{"reason": "TASK_NOT_FOUND"}]}},
            404,
            -32001,
        ),
        ({"error": {"code": 400, "message": "no", "status": "INVALID_ARGUMENT"}}, 400, -32602),
        ({"error": {"code": 404, "message": "no", "status": "NOT_FOUND"}}, 404, -32001),
        ({"message": "no", "type": "TaskNotCancelableError"}, 409, -32002),
        ({"code": -32004, "message": "no"}, 400, -32004),
        ({"message": "no"}, 422, -32602),
        ({"message": "no"}, 415, -32005),
        ({"message": "no"}, 409, -32002),
        ({"message": "no"}, 500, -32603),
        ({"error": {"code": 500, "message": "no", "status": "INTERNAL"}}, 500, -32603),
    ],
)
def test_each_form_of_an_error_is_mapped_to_its_code(
    body: JsonObject, status: int, code: int
) -> None:
    assert refuse(body, status) == RefusedByPeer(code, "no", status, 7)


def test_bare_not_found_is_about_the_task_only_where_one_was_named() -> None:
    body = {"error": {"code": 404, "message": "no", "status": "NOT_FOUND"}}
    assert refuse(body, 404, "SendMessage") == RefusedByPeer(
        -32603, "HTTP 404", 404, 7, is_bare=True
    )


@pytest.mark.parametrize("body", [[], "x", {}, {"error": "x"}, {"detail": "Not Found"}])
def test_body_without_an_error_has_only_the_status(body: object) -> None:
    assert refuse(body, 404) == RefusedByPeer(-32603, "HTTP 404", 404, 7, is_bare=True)
    assert refuse(body, 502) == Unknown("HTTP 502", 502)


def test_success_is_the_document_itself_and_nothing_else() -> None:
    call = PeerCall("GetTask", {"id": "t"}, 1)
    assert WIRE.read(call, 1, AgentReply(200, None, b'{"id":"t"}')) == Answered({"id": "t"})
    for raw in (b"[]", b"{", b""):
        assert isinstance(WIRE.read(call, 1, AgentReply(200, None, raw)), Malformed)


def test_events_are_documents_and_an_error_is_the_last_of_them() -> None:
    assert WIRE.read_event(b'{"task":{}}') == Answered({"task": {}})
    status = {"error": {"code": 500, "message": "broke", "status": "INTERNAL"}}
    assert WIRE.read_event(orjson.dumps(status)) == RefusedByPeer(-32603, "broke")
    assert isinstance(WIRE.read_event(b"{this"), Malformed)
