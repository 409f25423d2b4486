"""The OpenAPI document and the routes are one table."""

import json
import re
from typing import Any, cast

import pytest
from httpx import ASGITransport, AsyncClient

from passerelle.core.principal import AccessScope, Principal
from passerelle.core.wire.codec import from_wire
from passerelle.core.wire.json import Json
from passerelle.gateway.auth.authenticator import OpenAuthenticator
from passerelle.gateway.http.blobs import BlobEdge, make_blob_route
from passerelle.gateway.http.openapi import make_openapi_route, render_openapi
from passerelle.gateway.http.openapi_examples import EXAMPLES
from passerelle.gateway.http.site import make_site
from passerelle.gateway.http.streams import StreamEdge, make_stream_routes
from passerelle.gateway.http.tickets import TicketEdge, make_ticket_route
from passerelle.gateway.http.v1 import OPERATIONS, make_v1_routes
from passerelle.gateway.rpc.table import CALLS
from passerelle.gateway.settings.model import Settings
from passerelle.runtime.common.calls import Caller
from passerelle.runtime.common.clock import SystemIds
from passerelle.runtime.common.version import VERSION
from tests.support.scripted_service import ScriptedService

DOCUMENT: dict[str, Any] = render_openapi()


def test_every_route_is_described_and_nothing_else() -> None:
    nothing = cast("Any", None)  # a route needs its edge only when it is asked
    streams = StreamEdge(*([nothing] * 8))
    routes = [
        *make_v1_routes(ScriptedService(), OpenAuthenticator(), SystemIds()),
        *make_stream_routes(streams),
        make_ticket_route(TicketEdge(nothing, nothing, nothing)),
        make_blob_route(BlobEdge(*([nothing] * 6))),
    ]
    served = {
        (route.path_format, method.lower())
        for route in routes
        for method in (route.methods or ())
        if method != "HEAD"
    }
    described = {(path, method) for path, item in DOCUMENT["paths"].items() for method in item}
    assert described == served


def test_every_reference_leads_somewhere() -> None:
    components = DOCUMENT["components"]
    references = [name.split("/")[2:] for name in find_references(DOCUMENT)]
    assert {kind for kind, _ in references} == {"schemas", "responses"}
    assert not [name for kind, name in references if name not in components[kind]]


def find_references(value: Json) -> list[str]:
    match value:
        case {"$ref": str() as name}:
            return [name]
        case dict():
            return [name for item in value.values() for name in find_references(item)]
        case list():
            return [name for item in value for name in find_references(item)]
        case _:
            return []


def test_member_of_the_path_is_not_asked_for_in_the_body() -> None:
    decision = DOCUMENT["paths"]["/v1/approvals/{actionId}/decision"]["post"]
    body = decision["requestBody"]["content"]["application/json"]["schema"]
    assert "actionId" not in body["properties"]
    assert body["required"] == ["rev", "digest"]
    parameters = {
        row["name"]: row["required"] for row in decision["parameters"] if "required" in row
    }
    assert parameters == {"actionId": True}


def test_query_is_described() -> None:
    listing = DOCUMENT["paths"]["/v1/approvals"]["get"]["parameters"]
    names = [row["name"] for row in listing if row["in"] == "query"]
    assert names == ["pageSize", "limit", "kind", "risk", "taskId", "pageToken", "state", "owners"]


def test_every_list_is_asked_for_with_page_size_and_page_token_and_older_names_are_deprecated() -> (
    None
):
    """A newcomer met two paginations (``limit`` here, ``pageSize`` there)."""
    found = 0
    for path, item in DOCUMENT["paths"].items():
        if "get" not in item:
            continue
        rows = {row["name"]: row for row in item["get"]["parameters"] if row["in"] == "query"}
        if "pageToken" in rows:
            found += 1
            assert "pageSize" in rows, path
            for old in rows.keys() & {"limit", "after"}:
                assert find_members(rows[old]["schema"], "deprecated") == [True], path
    assert found == 10


def find_members(value: Json, name: str) -> list[Json]:
    match value:
        case dict():
            inner = [one for item in value.values() for one in find_members(item, name)]
            return [*([value[name]] if name in value else []), *inner]
        case list():
            return [one for item in value for one in find_members(item, name)]
        case _:
            return []


def test_server_is_where_the_document_is_or_the_public_url() -> None:
    assert DOCUMENT["servers"] == [{"url": "/"}]


@pytest.mark.anyio
@pytest.mark.parametrize(
    "public_url", ["https://agents.example.com", "https://example.com/passerelle/"]
)
async def test_server_is_the_public_url_if_one_is_set(public_url: str) -> None:
    site = make_site([make_openapi_route(public_url)], Settings())
    async with AsyncClient(transport=ASGITransport(site), base_url="http://127.0.0.1") as http:
        document = (await http.get("/v1/openapi.json")).json()
    assert document == {**DOCUMENT, "servers": [{"url": public_url.rstrip("/")}]}


def test_each_call_lists_the_errors_that_it_has() -> None:
    paths = DOCUMENT["paths"]
    decision = paths["/v1/approvals/{actionId}/decision"]["post"]["responses"]
    assert list(decision) == [
        *(
            "200",
            "400",
            "401",
            "403",
            "404",
            "409",
            "410",
            "412",
            "413",
            "415",
            "422",
            "429",
            "503",
        ),
        "default",
    ]
    assert list(paths["/v1/tasks"]["get"]["responses"]) == [
        *("200", "400", "401", "403", "429", "503"),
        "default",
    ]
    assert {"404", "502"} <= paths["/v1/turns"]["post"]["responses"].keys()
    assert "412" in paths["/v1/tasks/{taskId}"]["patch"]["responses"]
    for status, shared in DOCUMENT["components"]["responses"].items():
        if status != "Error":
            example = shared["content"]["application/problem+json"]["example"]
            assert f"Error{example['status']}" == status
            assert example.keys() >= {"type", "title", "status", "code", "detail"}


def test_each_example_is_what_its_call_takes() -> None:
    in_path = {
        operation.call.name: dict.fromkeys(operation.path_params, "task_2f")
        for operation in OPERATIONS
    }
    caller = Caller(
        Principal(id="owner", kind="person", scopes=frozenset(AccessScope)), "http", "key-1"
    )
    for name, example in EXAMPLES.items():
        row = CALLS[name]
        row.read(from_wire(row.params, {**example, **in_path[name]}), caller)
    shown = [
        operation["operationId"]
        for item in DOCUMENT["paths"].values()
        for operation in item.values()
        if "example"
        in operation.get("requestBody", {}).get("content", {}).get("application/json", {})
    ]
    assert sorted(shown) == sorted(EXAMPLES)


@pytest.mark.anyio
async def test_document_is_served_to_everybody() -> None:
    site = make_site([make_openapi_route()], Settings())
    async with AsyncClient(transport=ASGITransport(site), base_url="http://127.0.0.1") as http:
        response = await http.get("/v1/openapi.json")
    assert response.json() == DOCUMENT
    assert response.json()["info"]["version"] == VERSION


def test_descriptions_name_members_as_they_are_sent_and_no_row_of_the_ledger() -> None:
    text = json.dumps(DOCUMENT)
    assert "``" not in text
    assert not re.search(r"\((?:CMD|EVC|CHN|EXT|TR|ATT|GR|PO|TEV|A2A)-\d", text)
    made = DOCUMENT["paths"]["/v1/schedules"]["post"]["requestBody"]["content"]
    said = made["application/json"]["schema"]["description"]
    assert "exactly one of `cron` and `everyS`" in said
    answered = DOCUMENT["components"]["schemas"]["DecisionAnswer"]["description"]
    assert "`vote_recorded`" in answered, "a value is no member"
