"""Every route bounds its body and takes only JSON, whatever credential it requires."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import pytest
from httpx import ASGITransport, AsyncClient
from starlette.applications import Starlette

import passerelle.gateway
from passerelle.core.credentials import Credentials
from passerelle.gateway.auth.credentials import READER
from passerelle.gateway.http import buttons, pairing, tickets
from passerelle.gateway.http.problem import EXCEPTION_HANDLERS
from tests.support.harness import ADA

if TYPE_CHECKING:
    from passerelle.core.principal import Principal

pytestmark = pytest.mark.anyio
PIECE = 4_096
PIECES = 256
ROUTES = ("/v1/tickets", "/v1/devices/claim", "/v1/devices/prove", "/v1/approvals/answers")
READS = re.compile(r"\brequest\.(body|stream|json|form)\(")


class Everybody:
    """Takes every credential for the same caller."""

    async def authenticate(self, credentials: Credentials) -> Principal:
        del credentials
        return ADA


@pytest.fixture
def http() -> AsyncClient:
    """The routes with a body outside of the table of ``/v1``; they have no handlers here."""
    nothing = cast("Any", None)
    routes = [
        tickets.make_ticket_route(tickets.TicketEdge(nothing, Everybody(), READER)),
        *pairing.make_pairing_routes(pairing.PairingEdge(nothing)),
        buttons.make_button_route(buttons.ButtonEdge(nothing, nothing, nothing)),
    ]
    site = Starlette(routes=routes, exception_handlers=EXCEPTION_HANDLERS)
    return AsyncClient(transport=ASGITransport(app=site), base_url="http://gw")


@pytest.mark.parametrize("path", ROUTES)
async def test_body_that_does_not_end_is_refused_within_its_limit(
    http: AsyncClient, path: str
) -> None:
    taken = 0

    async def send() -> AsyncIterator[bytes]:
        nonlocal taken
        for _ in range(PIECES):
            taken += PIECE
            yield b" " * PIECE

    async with http:
        refused = await http.post(
            path, content=send(), headers={"Content-Type": "application/json"}
        )
    assert (refused.status_code, refused.json()["code"]) == (413, "too_large")
    assert taken <= refused.json()["limit_bytes"] + PIECE


@pytest.mark.parametrize("path", ROUTES)
async def test_body_that_is_announced_too_large_is_not_begun(http: AsyncClient, path: str) -> None:
    asked = False

    async def send() -> AsyncIterator[bytes]:
        nonlocal asked
        asked = True
        yield b""

    headers = {"Content-Type": "application/json", "Content-Length": "400000000"}
    async with http:
        refused = await http.post(path, content=send(), headers=headers)
    assert refused.status_code == 413
    assert not asked


@pytest.mark.parametrize("path", ROUTES)
@pytest.mark.parametrize("media_type", ["text/plain", "application/x-www-form-urlencoded", ""])
async def test_body_of_another_type_is_refused(
    http: AsyncClient, path: str, media_type: str
) -> None:
    async with http:
        refused = await http.post(path, content=b"{}", headers={"Content-Type": media_type})
    assert (refused.status_code, refused.json()["code"]) == (415, "content_type_not_supported")


@pytest.mark.parametrize("path", ROUTES)
@pytest.mark.parametrize(
    ("encoding", "status"), [("gzip", 415), ("br, gzip", 415), ("Identity", None)]
)
async def test_encoded_body_is_refused_with_the_encoding(
    http: AsyncClient, path: str, encoding: str, status: int | None
) -> None:
    headers = {"Content-Type": "application/json", "Content-Encoding": encoding}
    async with http:
        refused = await http.post(path, content=b"{}", headers=headers)
    if status is None:
        assert refused.status_code != 415
    else:
        assert refused.status_code == status
        assert f"content encoding '{encoding}' is not supported" in refused.json()["detail"]


def test_nothing_else_reads_bodies() -> None:
    folder = Path(str(passerelle.gateway.__path__[0]))
    readers = {
        path.relative_to(folder).as_posix()
        for path in folder.rglob("*.py")
        if READS.search(path.read_text())
    }
    assert readers == {"http/bodies.py"}
