"""The OpenAPI document and the routes are one table."""

from typing import Any, cast

import pytest
from httpx import ASGITransport, AsyncClient

from passerelle.core.wire.json import Json
from passerelle.gateway.auth.authenticator import OpenAuthenticator
from passerelle.gateway.http.blobs import BlobEdge, make_blob_route
from passerelle.gateway.http.openapi import make_openapi_route, render_openapi
from passerelle.gateway.http.site import make_site
from passerelle.gateway.http.streams import StreamEdge, make_stream_routes
from passerelle.gateway.http.tickets import TicketEdge, make_ticket_route
from passerelle.gateway.http.v1 import make_v1_routes
from passerelle.gateway.settings.model import Settings
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
        (route.path, method.lower())
        for route in routes
        for method in (route.methods or ())
        if method != "HEAD"
    }
    described = {(path, method) for path, item in DOCUMENT["paths"].items() for method in item}
    assert described == served


def test_every_reference_leads_somewhere() -> None:
    schemas = DOCUMENT["components"]["schemas"]
    references = list(find_references(DOCUMENT))
    assert references
    assert not [name for name in references if name.rpartition("/")[2] not in schemas]


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
    assert body["required"] == ["rev", "digest", "decisionId"]
    parameters = {
        row["name"]: row["required"] for row in decision["parameters"] if "required" in row
    }
    assert parameters == {"actionId": True, "Idempotency-Key": True}


def test_query_is_described() -> None:
    listing = DOCUMENT["paths"]["/v1/approvals"]["get"]["parameters"]
    names = [row["name"] for row in listing if row["in"] == "query"]
    assert names == ["limit", "kind", "risk", "taskId", "pageToken", "state", "owners"]


@pytest.mark.anyio
async def test_document_is_served_to_everybody() -> None:
    site = make_site([make_openapi_route()], Settings())
    async with AsyncClient(transport=ASGITransport(site), base_url="http://127.0.0.1") as http:
        response = await http.get("/v1/openapi.json")
    assert response.json() == DOCUMENT
    assert response.json()["info"]["version"] == VERSION
