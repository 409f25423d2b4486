"""Refused requests and the envelope of each refusal; none reaches a peer or the store."""

from __future__ import annotations

import gzip
from collections.abc import AsyncGenerator
from typing import Final

import httpx
import orjson
import pytest

from passerelle.core.chunks import in_chunks
from passerelle.core.wire.json import JsonObject
from passerelle.gateway.a2a.face import BODY_LIMIT_BYTES
from tests.integration.a2a.rig import Rig

pytestmark = pytest.mark.anyio
JSON = {"Content-Type": "application/json"}
INFO = "type.googleapis.com/google.rpc.ErrorInfo"


def rpc_error(response: httpx.Response, rpc_id: object = 7) -> tuple[int, int]:
    """Returns the HTTP status and the code of a JSON-RPC error, and checks its form."""
    body = response.json()
    assert set(body) == {"jsonrpc", "id", "error"}
    assert set(body["error"]) == {"code", "message", "data"}
    assert (body["jsonrpc"], body["id"]) == ("2.0", rpc_id)
    assert body["error"]["data"][0]["@type"] == INFO
    return response.status_code, body["error"]["code"]


def status_error(response: httpx.Response) -> tuple[int, str]:
    """Returns the HTTP status and the reason of a Google ``Status``, and checks its form."""
    assert response.headers["content-type"] == "application/json"
    body = response.json()
    assert set(body) == {"error"}
    assert set(body["error"]) == {"code", "status", "message", "details"}
    assert body["error"]["code"] == response.status_code
    return response.status_code, body["error"]["details"][0]["reason"]


RPC_TABLE: Final[list[tuple[bytes, int, object]]] = [
    (b"{not json", -32700, None),
    (b"", -32700, None),
    (b"\xff\xfe", -32700, None),
    (b"[" * 100 + b"]" * 100, -32700, None),
    (b"[]", -32600, None),
    (b'"text"', -32600, None),
    (b'{"jsonrpc":"2.0","method":"GetTask"}', -32600, None),
    (b'{"jsonrpc":"1.0","id":"a","method":"GetTask"}', -32600, "a"),
    (b'{"jsonrpc":"2.0","id":1.5,"method":"GetTask"}', -32600, None),
    (b'{"jsonrpc":"2.0","id":"a","method":7}', -32600, "a"),
    (b'{"jsonrpc":"2.0","id":"a","method":"GetTask","params":[]}', -32602, "a"),
    (b'{"jsonrpc":"2.0","id":"a","method":"GetTask","params":{}}', -32602, "a"),
    (b'{"jsonrpc":"2.0","id":null,"method":"GetTask","params":{"id":"t"}}', -32001, None),
    (b'{"jsonrpc":"2.0","id":0,"method":"tasks/get","params":{}}', -32601, 0),
    (b'{"jsonrpc":"2.0","id":0,"method":"Nothing"}', -32601, 0),
    (b'{"jsonrpc":"2.0","id":0,"method":"CreateTaskPushNotificationConfig"}', -32003, 0),
]


async def test_invalid_json_rpc_request_is_refused_with_its_id(rig: Rig) -> None:
    before = rig.list_keys()
    for content, code, rpc_id in RPC_TABLE:
        response = await rig.http.post("/agents/echo", content=content, headers=JSON)
        assert rpc_error(response, rpc_id) == (200, code), content
    assert rig.list_keys() == before
    assert rig.peer.requests == []


FIELDS: Final[list[tuple[JsonObject, str]]] = [
    ({"message": None}, "message"),
    ({"messageId": None}, "message.messageId"),
    ({"role": "ROLE_AGENT"}, "message.role"),
    ({"role": None}, "message.role"),
    ({"parts": []}, "message.parts"),
    ({"parts": [{"text": "a", "url": "b"}]}, "message.parts[0]"),
    ({"parts": [{"nothing": 1}]}, "message.parts[0]"),
    ({"taskId": 5}, "message.taskId"),
    ({"metadata": 5}, "message.metadata"),
]


async def test_invalid_field_is_named(rig: Rig) -> None:
    before = rig.list_keys()
    for change, field in FIELDS:
        params = rig.message("hello")
        message = params["message"]
        assert isinstance(message, dict)
        message.update(change)
        if change == {"message": None}:
            params = {}
        for method in ("SendMessage", "SendStreamingMessage"):
            error = await rig.refuse(method, params)
            assert error["code"] == -32602, change
            assert error["data"][1]["fieldViolations"][0]["field"] == field
        http = await rig.http.post("/agents/echo/message:send", json=params)
        assert status_error(http) == (400, "INVALID_PARAMS"), change
    assert rig.list_keys() == before


async def test_content_type_is_checked_before_the_body(rig: Rig) -> None:
    for media_type in ("text/plain", "application/x-www-form-urlencoded", ""):
        headers = {"Content-Type": media_type} if media_type else {}
        response = await rig.http.post("/agents/echo", content=b"{not json", headers=headers)
        assert rpc_error(response, None) == (200, -32005)
        response = await rig.http.post(
            "/agents/echo/message:send", content=b"{not json", headers=headers
        )
        assert status_error(response) == (415, "CONTENT_TYPE_NOT_SUPPORTED")


VERSIONS: Final = [
    ("1.0", "", True),
    ("1.0.3", "", True),
    ("", "1.0", True),
    ("1.0", "9.9", True),
    ("", "", False),
    ("0.3", "", False),
    ("", "0.3", False),
    ("1.1", "", False),
    ("2.0", "1.0", False),
    ("one", "", False),
]


async def test_version_is_checked_on_both_bindings(rig: Rig) -> None:
    authorization = {"Authorization": rig.http.headers["Authorization"]}
    async with httpx.AsyncClient(base_url=rig.url, headers=authorization) as http:
        for header, query, served in VERSIONS:
            tail = f"?A2A-Version={query}" if query else ""
            headers = {"A2A-Version": header} if header else {}
            body = {"jsonrpc": "2.0", "id": 7, "method": "ListTasks"}
            rpc = await http.post(f"/agents/echo{tail}", json=body, headers=headers)
            rest = await http.get(f"/agents/echo/tasks{tail}", headers=headers)
            if served:
                assert rest.json() == rpc.json()["result"], (header, query)
                assert set(rest.json()) == {"tasks", "nextPageToken", "pageSize", "totalSize"}
            else:
                assert rpc_error(rpc) == (200, -32009), (header, query)
                assert status_error(rest) == (400, "VERSION_NOT_SUPPORTED"), (header, query)


async def test_method_is_checked_against_the_version(rig: Rig) -> None:
    for version, method, code in (
        ("", "message/send", -32602),
        ("0.3", "message.send", -32602),
        ("1.0", "message/send", -32601),
        ("2.0", "message/send", -32009),
        ("", "ListTasks", -32009),
        ("", "tasks/list", -32601),
    ):
        body = {"jsonrpc": "2.0", "id": 7, "method": method}
        response = await rig.http.post("/agents/echo", json=body, headers={"A2A-Version": version})
        assert rpc_error(response) == (200, code), (version, method)


async def test_missing_version_is_refused_with_what_to_send_instead(rig: Rig) -> None:
    authorization = {"Authorization": rig.http.headers["Authorization"]}
    async with httpx.AsyncClient(base_url=rig.url, headers=authorization) as http:
        body = {"jsonrpc": "2.0", "id": 7, "method": "SendMessage", "params": rig.message("hello")}
        rpc = await http.post("/agents/echo", json=body)
        rest = await http.post("/agents/echo/message:send", json=rig.message("hello"))
        assert rpc_error(rpc) == (200, -32009)
        assert status_error(rest) == (400, "VERSION_NOT_SUPPORTED")
        for said in (rpc.json()["error"]["message"], rest.json()["error"]["message"]):
            assert "the header A2A-Version is missing, so 0.3 was assumed" in said
            assert "send A2A-Version: 1.0" in said
        named = await http.post("/agents/echo", json=body, headers={"A2A-Version": "0.3"})
        assert "missing" not in named.json()["error"]["message"]
    assert rig.counted() == 0


@pytest.mark.parametrize(
    ("method", "params", "code"),
    [
        ("no/such", {}, -32601),
        ("message/send", {"message": {"role": "user"}}, -32602),
        ("tasks/get", {}, -32602),
        ("tasks/get", {"id": "task_1"}, -32600),
    ],
)
async def test_v03_request_without_an_id_gets_its_other_error_first(
    rig: Rig, method: str, params: dict[str, object], code: int
) -> None:
    body = {"jsonrpc": "2.0", "method": method, "params": params}
    response = await rig.http.post("/agents/echo", json=body, headers={"A2A-Version": "0.3"})
    newer = await rig.http.post("/agents/echo", json=body)
    for answer, expected in ((response.json(), code), (newer.json(), -32600)):
        assert (answer["id"], answer["error"]["code"]) == (None, expected)


async def test_role_may_be_its_enum_number(rig: Rig) -> None:
    done = await rig.send("hello", role=1)
    assert done["status"]["state"] == "TASK_STATE_COMPLETED"
    assert rig.peer.messages[0]["role"] == "ROLE_USER"
    for wrong in (0, 2, True, 1.0):
        error = await rig.refuse("SendMessage", rig.message("hello", role=wrong))
        assert error["code"] == -32602


async def test_path_of_0_3_does_not_exist_in_1_0(rig: Rig) -> None:
    response = await rig.http.get("/agents/echo/v1/tasks/t")
    assert (response.status_code, response.json()["type"]) == (404, "MethodNotFoundError")
    assert response.json()["error"]["status"] == "UNIMPLEMENTED"


async def test_body_over_the_limit_is_refused_while_it_is_read(rig: Rig) -> None:
    before = rig.list_keys()
    whole = b'{"a":"' + b"x" * BODY_LIMIT_BYTES + b'"}'

    async def pieces() -> AsyncGenerator[bytes]:
        for part in in_chunks(whole, 65_536):
            yield part

    for content in (whole, pieces()):
        response = await rig.http.post("/agents/echo", content=content, headers=JSON)
        assert rpc_error(response, None) == (200, -32600)
        assert response.json()["error"]["data"][0]["reason"] == "TOO_LARGE"
    for content in (whole, pieces()):
        response = await rig.http.post("/agents/echo/message:send", content=content, headers=JSON)
        assert status_error(response) == (413, "TOO_LARGE")
    assert rig.list_keys() == before


@pytest.mark.parametrize("token", [None, "Bearer wrong", "Basic abc"])
async def test_caller_without_a_credential_gets_401_in_the_envelope_of_its_binding(
    rig: Rig, token: str | None
) -> None:
    headers = {"A2A-Version": "1.0"} | ({"Authorization": token} if token else {})
    async with httpx.AsyncClient(base_url=rig.url, headers=headers) as http:
        for agent in ("echo", "unknown"):
            rpc = await http.post(f"/agents/{agent}", content=b"{", headers=JSON)
            assert rpc_error(rpc, None) == (401, -32603)
            assert rpc.headers["www-authenticate"].startswith("Bearer")
            for path in ("/tasks", "", "/nothing"):
                rest = await http.get(f"/agents/{agent}{path}")
                assert status_error(rest) == (401, "UNAUTHENTICATED")
        nowhere = await http.get("/")
    assert (nowhere.status_code, nowhere.json()["agents"]) == (404, [])


async def test_caller_without_the_scope_gets_its_name(rig: Rig) -> None:
    reader = {"Authorization": "Bearer reader-key"}
    response = await rig.post("SendMessage", rig.message("hello"), **reader)
    assert rpc_error(response) == (403, -32603)
    assert "a2a:call" in response.json()["error"]["message"]
    rest = await rig.http.post("/agents/echo/message:send", json=rig.message("x"), headers=reader)
    assert status_error(rest) == (403, "PERMISSION_DENIED")
    assert (await rig.post("ListTasks", {}, **reader)).json()["result"]["tasks"] == []
    assert rig.counted() == 0


@pytest.mark.parametrize("path", ["/agents", "/agents/none", "/agents/none/tasks", "/"])
async def test_request_without_an_agent_lists_those_that_the_caller_may_use(
    rig: Rig, path: str
) -> None:
    # A POST to the root is for the gateway's own agent.
    verbs = ("GET", "GET") if path == "/" else ("GET", "POST")
    for key, agents in (("owner-token", ["echo", "gone"]), ("narrow-key", ["gone"])):
        for verb in verbs:
            headers = {"Authorization": f"Bearer {key}"}
            response = await rig.http.request(verb, path, headers=headers)
            assert response.status_code == 404
            assert response.headers["content-type"] == "application/problem+json"
            assert response.json()["agents"] == agents
    counted = rig.metrics.render().decode()
    assert 'passerelle_requests_total{agent="",operation="none",outcome="not_found"} 4.0' in counted


async def test_forbidden_agent_equals_an_unknown_one(rig: Rig) -> None:
    narrow = {"Authorization": "Bearer narrow-key"}
    for path in ("", "/", "/tasks", "/message:send", "/nothing"):
        answers = [
            await rig.http.post(f"/agents/{agent}{path}", headers={**narrow, **JSON})
            for agent in ("echo", "ehco")
        ]
        assert answers[0].status_code == answers[1].status_code == 404
        assert answers[0].text == answers[1].text.replace("ehco", "echo")


async def test_operation_without_permission_is_refused_whatever_it_names(rig: Rig) -> None:
    till = {"Authorization": "Bearer till-key"}
    mine = (await rig.post("SendMessage", rig.message("hello"))).json()["result"]["task"]["id"]
    before = rig.counted()
    answers = [await rig.post("CancelTask", {"id": task}, **till) for task in (mine, "unknown")]
    assert [rpc_error(one) for one in answers] == [(403, -32603)] * 2
    assert answers[0].text == answers[1].text
    sent = await rig.http.post("/agents/echo/message:send", json=rig.message("x"), headers=till)
    assert status_error(sent) == (403, "PERMISSION_DENIED")
    found = await rig.post("GetTask", {"id": mine}, **till)
    assert rpc_error(found) == (200, -32001)
    assert rig.counted() == before


@pytest.mark.parametrize("slash", ["", "/"])
async def test_json_rpc_answers_with_and_without_a_slash_and_never_redirects(
    rig: Rig, slash: str
) -> None:
    body = {"jsonrpc": "2.0", "id": "x", "method": "ListTasks"}
    response = await rig.http.post(f"/agents/echo{slash}", json=body)
    assert (response.status_code, response.json()["id"]) == (200, "x")


HTTP_TABLE: Final = [
    ("GET", "", 405, "METHOD_NOT_FOUND"),
    ("GET", "/message:send", 405, "METHOD_NOT_FOUND"),
    ("POST", "/tasks", 405, "METHOD_NOT_FOUND"),
    ("DELETE", "/tasks/t", 405, "METHOD_NOT_FOUND"),
    ("GET", "/tasks/t:cancel", 405, "METHOD_NOT_FOUND"),
    ("GET", "/nothing", 404, "METHOD_NOT_FOUND"),
    ("GET", "/tasks/t/pushNotificationConfigs", 400, "PUSH_NOTIFICATION_NOT_SUPPORTED"),
    ("POST", "/tasks/t/pushNotificationConfigs", 400, "PUSH_NOTIFICATION_NOT_SUPPORTED"),
    ("DELETE", "/tasks/t/pushNotificationConfigs/c", 400, "PUSH_NOTIFICATION_NOT_SUPPORTED"),
    ("GET", "/tasks/t", 404, "TASK_NOT_FOUND"),
    ("POST", "/tasks/t:cancel", 404, "TASK_NOT_FOUND"),
    ("POST", "/tasks/t:subscribe", 404, "TASK_NOT_FOUND"),
    ("GET", "/tasks?pageSize=0", 400, "INVALID_PARAMS"),
    ("GET", "/tasks?pageToken=%21", 400, "INVALID_PARAMS"),
    ("GET", "/tasks?status=SLEEPING", 400, "INVALID_PARAMS"),
]


async def test_http_json_error_is_a_status_with_the_code_of_the_table(rig: Rig) -> None:
    for verb, path, status, reason in HTTP_TABLE:
        response = await rig.http.request(verb, f"/agents/echo{path}")
        assert status_error(response) == (status, reason), (verb, path)
        assert ("allow" in response.headers) == (status == 405)


async def test_send_with_a_push_config_is_refused(rig: Rig) -> None:
    configuration: JsonObject = {"taskPushNotificationConfig": {"url": "http://127.0.0.1:1/"}}
    params = rig.message("hello", configuration=configuration)
    assert (await rig.refuse("SendMessage", params))["code"] == -32003
    assert rig.counted() == 0


async def test_too_long_idempotency_key_is_refused_by_its_header(rig: Rig) -> None:
    headers = {"Idempotency-Key": "k" * 256}
    response = await rig.post("SendMessage", rig.message("hello"), **headers)
    assert rpc_error(response) == (200, -32602)
    assert "Idempotency-Key" in response.json()["error"]["message"]


@pytest.mark.parametrize(
    ("version", "method", "meant"),
    [
        ("1.0", "sendmessage", "SendMessage"),
        ("1.0", "message/send", "SendMessage, its name in 1.0"),
        ("0.3", "message/sent", "message/send"),
    ],
)
async def test_a_mistyped_method_is_answered_with_the_likely_one(
    rig: Rig, version: str, method: str, meant: str
) -> None:
    response = await rig.post(method, {}, **{"A2A-Version": version})
    assert rpc_error(response) == (200, -32601)
    said = response.json()["error"]["message"]
    assert said == f"there is no method '{method}'; did you mean {meant}?"


@pytest.mark.parametrize("path", ["/agents/echo", "/agents/echo/message:send"])
async def test_compressed_request_is_refused_with_its_encoding(rig: Rig, path: str) -> None:
    params = rig.message("echo hello")
    sent = (
        params
        if path.endswith("send")
        else {"jsonrpc": "2.0", "id": 7, "method": "SendMessage", "params": params}
    )
    headers = {"Content-Type": "application/json", "Content-Encoding": "gzip"}
    body = gzip.compress(orjson.dumps(sent))
    refused = await rig.http.post(path, content=body, headers=headers)
    error = refused.json()["error"]
    assert error["message"] == (
        "content encoding 'gzip' is not supported; send the body uncompressed"
    )
    assert error["details" if path.endswith("send") else "data"][0]["reason"] == (
        "CONTENT_TYPE_NOT_SUPPORTED"
    )
    assert rig.peer.texts == []
    same = await rig.http.post(
        path, content=orjson.dumps(sent), headers=headers | {"Content-Encoding": "identity"}
    )
    assert same.status_code == 200
