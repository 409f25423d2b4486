"""The wire form of each binding (A2A 1.0 sections 9.1 to 9.4 and 11.1 to 11.7)."""

from __future__ import annotations

import httpx
import orjson
import pytest

from passerelle.a2a_mapping.rpc import Method
from tests.conformance.callers import GRPC, HTTP_JSON, JSONRPC, Caller, Json, locate, make_params
from tests.conformance.shapes import check_answer
from tests.conformance.site import KEYS, Site, open_as, open_http, write

pytestmark = pytest.mark.anyio

OPERATIONS = tuple(method.value for method in Method)
METHOD_NOT_FOUND = -32601


@pytest.mark.kit("JSONRPC-FMT-001", "JSONRPC-FMT-002")
async def test_json_rpc_answers_in_its_envelope(rpc: Caller) -> None:
    answer = await rpc.call("SendMessage", make_params(write("tck-complete-task")))
    said = orjson.loads(answer.raw)
    assert set(said) == {"jsonrpc", "id", "result"}
    assert (said["jsonrpc"], said["id"]) == ("2.0", 7)
    assert answer.headers["content-type"] == "application/json"
    check_answer(answer.said)


@pytest.mark.kit("JSONRPC-FMT-001")
@pytest.mark.parametrize("rpc_id", ["text", 0, 2**53, None])
async def test_json_rpc_returns_the_id_unchanged(site: Site, rpc_id: object) -> None:
    body: Json = {"jsonrpc": "2.0", "id": rpc_id, "method": "GetTask", "params": {"id": "x"}}
    for path in ("", "/"):
        async with open_as("ada") as http:
            response = await http.post(site.find_url() + path, json=body)
        assert response.status_code == httpx.codes.OK
        assert response.json()["id"] == rpc_id


@pytest.mark.kit("JSONRPC-SVC-001")
@pytest.mark.parametrize("operation", OPERATIONS)
async def test_json_rpc_selects_the_method_by_its_name(rpc: Caller, operation: str) -> None:
    answer = await rpc.call(operation, {})
    assert answer.refusal is None or answer.refusal.code != METHOD_NOT_FOUND
    unknown = await rpc.call(operation[0].lower() + operation[1:], {})
    assert unknown.refused.code == METHOD_NOT_FOUND


@pytest.mark.kit("JSONRPC-SVC-002", "HTTP_JSON-SVC-002", "GRPC-META-001")
async def test_service_parameters_are_sent_as_headers_or_metadata(caller: Caller) -> None:
    asked = "https://example.com/ext/v1,https://example.com/ext/v2"
    params = make_params(write("tck-complete-task"))
    answer = await caller.call("SendMessage", params, A2A_Extensions=asked)
    assert "task" in answer.said
    assert "example.com" not in answer.headers.get("a2a-extensions", "")


@pytest.mark.kit("HTTP_JSON-SVC-001")
async def test_http_answers_with_bare_objects_in_the_type_of_the_request(rest: Caller) -> None:
    answer = await rest.call("SendMessage", make_params(write("tck-complete-task")))
    assert answer.headers["content-type"] == "application/json"
    check_answer(answer.said)


@pytest.mark.kit("HTTP_JSON-URL-001", "HTTP_JSON-URL-002")
@pytest.mark.parametrize("operation", OPERATIONS)
async def test_http_has_each_operation_at_its_path_under_its_verb(
    site: Site, operation: str
) -> None:
    named = {"id": "a-task", "taskId": "a-task"}
    verb, path, _ = locate(operation, named)
    async with open_as("ada") as http:
        found = await http.request(
            verb, site.find_url() + path, json={} if verb == "POST" else None
        )
        assert found.status_code != 405
        # No other resource is at this path: the error reports that the task is not found.
        if found.status_code == 404:
            assert "TASK_NOT_FOUND" in found.text
        other = await http.request("PUT", site.find_url() + path, json={})
        assert other.status_code in {httpx.codes.METHOD_NOT_ALLOWED, httpx.codes.NOT_FOUND}


@pytest.mark.kit("HTTP_JSON-URL-002")
async def test_http_subscribes_with_both_verbs(site: Site, rest: Caller) -> None:
    task = await rest.make_task(write("tck-input-required"))
    for verb in ("GET", "POST"):
        url = f"{site.find_url()}/tasks/{task['id']}:subscribe"
        async with open_as("ada") as http, http.stream(verb, url) as response:
            assert response.headers["content-type"].startswith("text/event-stream")


@pytest.mark.kit("HTTP_JSON-URL-001")
async def test_http_cancels_with_an_empty_body(site: Site, rest: Caller) -> None:
    task = await rest.make_task(write("tck-input-required"))
    async with open_as("ada") as http:
        response = await http.post(f"{site.find_url()}/tasks/{task['id']}:cancel")
    assert response.json()["status"]["state"] == "TASK_STATE_CANCELED"


@pytest.mark.kit("HTTP_JSON-QP-001")
async def test_http_reads_its_query_in_camel_case(rest: Caller, site: Site) -> None:
    context = write("query")["messageId"]
    await rest.make_task(write("tck-artifact-text", contextId=context))
    query = {
        "contextId": context,
        "pageSize": "7",
        "historyLength": "0",
        "includeArtifacts": "true",
    }
    async with open_as("ada") as http:
        page = (await http.get(f"{site.find_url()}/tasks", params=query)).json()
    assert (page["pageSize"], page["totalSize"]) == (7, 1)
    assert "artifacts" in page["tasks"][0]
    assert "history" not in page["tasks"][0]


@pytest.mark.kit("JSONRPC-SVC-002", "HTTP_JSON-SVC-002")
@pytest.mark.parametrize("binding", [JSONRPC, HTTP_JSON])
async def test_version_may_be_in_the_query(site: Site, binding: str) -> None:
    sent = {"Authorization": f"Bearer {KEYS['ada']}"}
    url = site.find_url()
    async with open_http(sent) as http:
        if binding == JSONRPC:
            body: Json = {"jsonrpc": "2.0", "id": 1, "method": "ListTasks", "params": {}}
            said = (await http.post(url, params={"A2A-Version": "1.0"}, json=body)).json()["result"]
        else:
            said = (await http.get(f"{url}/tasks", params={"A2A-Version": "1.0"})).json()
    assert {"tasks", "nextPageToken", "pageSize", "totalSize"} == set(said)


@pytest.mark.kit("GRPC-SVC-001", "GRPC-SVC-002")
@pytest.mark.parametrize("operation", OPERATIONS)
async def test_grpc_serves_each_method_of_the_service(site: Site, operation: str) -> None:
    named = {"id": "x"} if operation in {"GetTask", "CancelTask", "SubscribeToTask"} else {}
    async with site.open_caller(GRPC) as caller:
        if operation in {"SendStreamingMessage", "SubscribeToTask"}:
            async with caller.stream(operation, named) as stream:
                refusal = stream.refusal
        else:
            refusal = (await caller.call(operation, named)).refusal
    assert refusal is None or refusal.code != "UNIMPLEMENTED"
