"""The AsyncAPI document where clients look for it."""

import pytest
from httpx import ASGITransport, AsyncClient

from passerelle.channels.asyncapi import render_asyncapi
from passerelle.gateway.http.openapi import make_asyncapi_route
from passerelle.gateway.http.site import make_site
from passerelle.gateway.settings.model import Settings
from passerelle.runtime.common.version import VERSION


@pytest.mark.anyio
async def test_document_is_served_to_everybody() -> None:
    site = make_site([make_asyncapi_route()], Settings())
    async with AsyncClient(transport=ASGITransport(site), base_url="http://127.0.0.1") as http:
        response = await http.get("/v1/asyncapi.json")
    assert response.json() == render_asyncapi(VERSION)
