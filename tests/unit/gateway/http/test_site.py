"""The open mode serves this machine, but not web pages in its browser."""

import asyncio
from typing import TYPE_CHECKING, cast

import orjson
import pytest
from httpx import ASGITransport, AsyncClient
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.routing import Mount, Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from passerelle.gateway.edges import FaceRouter
from passerelle.gateway.http.problem import FaultGuard
from passerelle.gateway.http.site import make_site
from passerelle.gateway.settings.model import Settings
from passerelle.runtime.common.clock import SystemIds
from passerelle.runtime.observability.logs import Requests

if TYPE_CHECKING:
    from passerelle.gateway.a2a.face import Face


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


@pytest.mark.anyio
@pytest.mark.parametrize("name", [b"host", b"origin", b"authorization"])
@pytest.mark.parametrize("mode", ["open", "keys"])
async def test_repeated_header_is_refused_with_its_name(name: bytes, mode: str) -> None:
    """Two lines of one field are read differently by proxies in front of the gateway (L4)."""
    served: list[str] = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        served.append(scope["path"])
        await PlainTextResponse("in")(scope, receive, send)

    def wrap(rest: ASGIApp) -> ASGIApp:
        return FaceRouter(cast("Face", NoFace()), rest, Requests(SystemIds()))

    settings = OPEN if mode == "open" else Settings()
    site = make_site([Mount("/", app)], settings, wrap)
    here = [(b"host", b"127.0.0.1"), (b"origin", b"http://localhost")]
    async with AsyncClient(transport=ASGITransport(site), base_url="http://127.0.0.1") as http:
        headers = [*here, (b"authorization", b"Bearer x"), (name, b"localhost")]
        refused = await http.get("/", headers=[*headers, (name, b"evil.example")])
        assert refused.status_code == 400
        assert refused.json()["field"] == name.decode()
        assert served == []
        assert (await http.get("/", headers=[*here, (b"accept", b"a"), (b"accept", b"b")])).text
    assert served == ["/"]


class NoFace:
    """Matches nothing."""

    @staticmethod
    def matches(_scope: Scope) -> bool:
        return False


@pytest.mark.anyio
async def test_request_that_a_stop_interrupts_gets_an_error() -> None:
    entered, sent = asyncio.Event(), list[Message]()

    async def wait(_scope: Scope, _receive: Receive, _send: Send) -> None:
        entered.set()
        await asyncio.Event().wait()

    async def receive() -> Message:
        return {"type": "http.request"}

    async def send(message: Message) -> None:
        sent.append(message)

    scope: Scope = {"type": "http", "method": "GET", "path": "/v1/turns", "headers": []}
    request = asyncio.create_task(FaultGuard(wait)(scope, receive, send))
    await asyncio.wait_for(entered.wait(), 5)
    request.cancel()
    await asyncio.wait([request])
    assert request.cancelled(), "the stop goes on"
    assert sent[0]["status"] == 503
    assert orjson.loads(sent[1]["body"])["code"] == "draining"
