"""Refusals: the right error, in the binding's own form, with details (A2A 1.0.1 sections 3.3.2, 5.4, 9.5, 11.6)."""

from __future__ import annotations

import httpx
import orjson
import pytest

from tests.conformance import errors
from tests.conformance.callers import (
    HTTP_JSON,
    JSONRPC,
    Caller,
    Json,
    JsonRpcCaller,
    make_params,
    read_http,
)
from tests.conformance.site import DEMANDING, KEYS, Site, open_http, write
from tests.support.conformance_agent import REQUIRED_EXTENSION

pytestmark = pytest.mark.anyio

NOWHERE = {"id": "no-such-task"}
SPOILED: list[Json] = [
    {"parts": []},
    {"parts": None},
    {"parts": "text"},
    {"parts": [{}]},
    {"parts": [{"text": "one", "url": "https://example.com"}]},
    {"parts": [{"text": 7}]},
    {"role": "ROLE_NOBODY"},
    {"role": None},
    {"messageId": ""},
    {"messageId": 7},
    {"contextId": 7},
]


@pytest.mark.kit("CORE-ERR-001", "JSONRPC-ERR-001", "JSONRPC-ERR-002", "JSONRPC-ERR-003")
async def test_error_of_json_rpc_has_a_code_a_message_and_typed_details(rpc: Caller) -> None:
    answer = await rpc.call("GetTask", NOWHERE)
    said = orjson.loads(answer.raw)
    assert set(said) == {"jsonrpc", "id", "error"}
    assert (said["jsonrpc"], said["id"]) == ("2.0", 7)
    assert set(said["error"]) == {"code", "message", "data"}
    assert answer.status == httpx.codes.OK
    assert answer.headers["content-type"] == "application/json"
    errors.TASK_NOT_FOUND.check(answer.refused, JSONRPC)
    assert -32099 <= int(answer.refused.code) <= -32001


@pytest.mark.kit("CORE-ERR-001", "HTTP_JSON-ERR-001", "HTTP_JSON-ERR-002", "HTTP_JSON-STATUS-001")
async def test_error_of_http_is_a_status_with_details(rest: Caller) -> None:
    answer = await rest.call("GetTask", NOWHERE)
    said = orjson.loads(answer.raw)
    assert set(said) == {"error"}
    assert set(said["error"]) == {"code", "status", "message", "details"}
    assert said["error"]["code"] == answer.status == httpx.codes.NOT_FOUND
    assert said["error"]["status"] == "NOT_FOUND"
    assert answer.headers["content-type"] == "application/json"
    errors.TASK_NOT_FOUND.check(answer.refused, HTTP_JSON)


@pytest.mark.kit("JSONRPC-SSE-002", "HTTP_JSON-STATUS-001", "GRPC-ERR-001", "GRPC-ERR-002")
async def test_each_error_has_the_code_of_its_binding(caller: Caller) -> None:
    task = await caller.make_task(write("tck-complete-task"))
    ended = make_params(write("tck-complete-task", taskId=task["id"]))
    refused_type = make_params(write("psl-refuse-type"))
    for operation, params, error in (
        ("GetTask", NOWHERE, errors.TASK_NOT_FOUND),
        ("CancelTask", {"id": task["id"]}, errors.NOT_CANCELABLE),
        ("SendMessage", ended, errors.UNSUPPORTED),
        ("SendMessage", refused_type, errors.CONTENT_TYPE),
    ):
        error.check((await caller.call(operation, params)).refused, caller.binding)
    old = await caller.call("GetTask", {"id": task["id"]}, A2A_Version="99.0")
    errors.VERSION.check(old.refused, caller.binding)


@pytest.mark.kit("CORE-ERR-002")
@pytest.mark.parametrize("spoil", SPOILED)
async def test_invalid_message_is_refused_with_the_field(
    rpc: Caller, rest: Caller, spoil: Json
) -> None:
    (name,) = spoil
    for caller in (rpc, rest):
        params = make_params({**write("tck-complete-task"), **spoil})
        refused = (await caller.call("SendMessage", params)).refused
        errors.INVALID_PARAMS.check(refused, caller.binding)
        assert name in str(refused)


@pytest.mark.kit("CORE-ERR-002")
async def test_parameters_out_of_range_are_refused(caller: Caller) -> None:
    for operation, params in (
        ("ListTasks", {"pageSize": 0}),
        ("ListTasks", {"pageSize": 101}),
        ("ListTasks", {"pageToken": "made-up"}),
        ("ListTasks", {"historyLength": -1}),
        ("GetTask", {"id": "x", "historyLength": -1}),
    ):
        refused = (await caller.call(operation, params)).refused
        errors.INVALID_PARAMS.check(refused, caller.binding)


@pytest.mark.kit("CORE-ERR-002", "JSONRPC-FMT-001")
@pytest.mark.parametrize(
    ("body", "error"),
    [
        (b"{", errors.PARSE),
        (b"", errors.PARSE),
        (b"[]", errors.INVALID_REQUEST),
        (b'[{"jsonrpc":"2.0","id":1,"method":"GetTask"}]', errors.INVALID_REQUEST),
        (b'"text"', errors.INVALID_REQUEST),
        (b'{"id":1,"method":"GetTask","params":{}}', errors.INVALID_REQUEST),
        (b'{"jsonrpc":"1.0","id":1,"method":"GetTask","params":{}}', errors.INVALID_REQUEST),
        (b'{"jsonrpc":"2.0","id":1,"params":{}}', errors.INVALID_REQUEST),
        (b'{"jsonrpc":"2.0","id":1,"method":7}', errors.INVALID_REQUEST),
        (b'{"jsonrpc":"2.0","id":1,"method":"GetTask","params":[]}', errors.INVALID_PARAMS),
        (b'{"jsonrpc":"2.0","id":1,"method":"GetTask","params":{}}', errors.INVALID_PARAMS),
        (
            b'{"jsonrpc":"2.0","id":1,"method":"NoSuchThing","params":{}}',
            errors.Error(-32601, 404, ""),
        ),
    ],
)
async def test_invalid_request_body_has_its_own_error(
    site: Site, body: bytes, error: errors.Error
) -> None:
    async with site.open_caller(JSONRPC) as opened:
        assert isinstance(opened, JsonRpcCaller)
        response = await opened.post(body)
    said = response.json()
    assert response.status_code == httpx.codes.OK
    assert said["error"]["code"] == error.jsonrpc
    assert said["jsonrpc"] == "2.0"


@pytest.mark.kit("JSONRPC-SSE-002", "HTTP_JSON-STATUS-001", "JSONRPC-FMT-002")
async def test_body_of_another_type_is_not_read(site: Site) -> None:
    sent = {
        "Authorization": f"Bearer {KEYS['ada']}",
        "A2A-Version": "1.0",
        "Content-Type": "text/plain",
    }
    async with open_http(sent) as http:
        said = (await http.post(site.find_url(), content=b"hello")).json()
        assert said["error"]["code"] == errors.CONTENT_TYPE.jsonrpc
        response = await http.post(f"{site.find_url()}/message:send", content=b"hello")
    assert response.status_code == httpx.codes.UNSUPPORTED_MEDIA_TYPE
    assert read_http(response).refused.reason == errors.CONTENT_TYPE.reason


@pytest.mark.kit("CORE-CAP-004")
async def test_extension_required_by_the_agent_is_required_of_the_caller(
    site: Site, binding: str
) -> None:
    async with site.open_caller(binding, agent=DEMANDING) as caller:
        params = make_params(write("tck-complete-task"))
        without = await caller.call("SendMessage", params)
        errors.EXTENSION_REQUIRED.check(without.refused, binding)
        async with caller.stream("SendStreamingMessage", params) as stream:
            assert stream.refusal is not None
            errors.EXTENSION_REQUIRED.check(stream.refusal, binding)
        answered = await caller.call("SendMessage", params, A2A_Extensions=REQUIRED_EXTENSION)
        assert "task" in answered.said


@pytest.mark.kit("VER-SERVER-002")
@pytest.mark.parametrize("version", ["99.0", "2.0", "1.1", "nonsense", "1"])
async def test_unsupported_version_is_refused(caller: Caller, version: str) -> None:
    answer = await caller.call("GetTask", NOWHERE, A2A_Version=version)
    errors.VERSION.check(answer.refused, caller.binding)


@pytest.mark.kit("VER-SERVER-003")
async def test_method_of_version_1_without_a_version_is_refused(site: Site) -> None:
    """An empty version means 0.3, which has no such method."""
    async with site.open_caller(JSONRPC) as caller:
        for version in ("", "0.3"):
            answer = await caller.call("GetTask", NOWHERE, A2A_Version=version)
            errors.VERSION.check(answer.refused, JSONRPC)
