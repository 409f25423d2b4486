"""The open mode serves this machine and not the web pages that its browser shows."""

import pytest
from httpx import ASGITransport, AsyncClient
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.routing import Route

from passerelle.gateway.http.site import make_site
from passerelle.gateway.settings import Settings


async def _answer(_request: Request) -> PlainTextResponse:
    return PlainTextResponse("in")


async def ask(settings: Settings, headers: dict[str, str]) -> int:
    site = make_site([Route("/", _answer)], settings)
    async with AsyncClient(transport=ASGITransport(site), base_url="http://127.0.0.1") as http:
        return (await http.get("/", headers=headers)).status_code


OPEN = Settings.model_validate({"auth": "open", "public_url": "https://gate.example.com"})


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({}, 200),
        ({"Host": "localhost:8080"}, 200),
        ({"Host": "[::1]:8080"}, 200),
        ({"Host": "gate.example.com"}, 200),
        ({"Origin": "http://localhost:3000"}, 200),
        ({"Host": "evil.example"}, 403),
        ({"Host": "127.0.0.1.evil.example"}, 403),
        ({"Host": ""}, 403),
        ({"Host": "[::1"}, 403),
        ({"Origin": "http://evil.example"}, 403),
        ({"Origin": "null"}, 403),
        ({"Origin": "https://gate.example.com.evil.example"}, 403),
    ],
)
async def test_open_gateway_refuses_what_does_not_name_this_machine(
    headers: dict[str, str], status: int
) -> None:
    assert await ask(OPEN, headers) == status


@pytest.mark.anyio
async def test_gateway_with_keys_leaves_names_to_the_operator() -> None:
    assert await ask(Settings(), {"Host": "evil.example", "Origin": "http://evil.example"}) == 200
