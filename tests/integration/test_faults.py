"""Unexpected exceptions behind HTTP routes: one response 500, one log line, and the connection stays open."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

import httpx
import pytest
from starlette.responses import PlainTextResponse, StreamingResponse
from starlette.routing import Route
from structlog.testing import capture_logs

from passerelle.gateway.http.site import make_site
from passerelle.gateway.server import Server, bind
from passerelle.gateway.settings.model import Settings

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator
    from pathlib import Path

    from starlette.requests import Request
    from starlette.responses import Response

pytestmark = pytest.mark.anyio


async def _fail(_request: Request) -> Response:
    raise ValueError("a mistake in the gateway")


async def _answer(_request: Request) -> Response:
    return PlainTextResponse("here")


async def _break_off(_request: Request) -> Response:
    async def pieces() -> AsyncIterator[str]:
        yield "begun"
        raise ValueError("a mistake in the middle")

    return StreamingResponse(pieces())


@pytest.fixture
async def url(tmp_path: Path, anyio_backend: str) -> AsyncGenerator[str]:
    """A site whose routes raise exceptions."""
    routes = [Route("/fail", _fail), Route("/", _answer), Route("/break", _break_off)]
    site = make_site(routes, Settings(data_dir=tmp_path))
    listener, stop = bind("127.0.0.1", 0), asyncio.Event()
    serving = asyncio.create_task(Server(site, listener).serve(stop))
    yield listener.url
    stop.set()
    await serving


async def test_exception_is_one_response_and_one_log_line_and_the_connection_stays_open(
    url: str, caplog: pytest.LogCaptureFixture
) -> None:
    port = int(url.rpartition(":")[2])
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    with capture_logs() as lines, caplog.at_level(logging.WARNING):
        writer.write(b"GET /fail HTTP/1.1\r\nHost: x\r\n\r\nGET / HTTP/1.1\r\nHost: x\r\n\r\n")
        answered = await asyncio.wait_for(reader.readuntil(b"here"), 10)
    writer.close()
    assert answered.startswith(b"HTTP/1.1 500")
    assert b"urn:passerelle:problem:internal" in answered
    assert b"a mistake" not in answered
    assert [(line["event"], line["path"]) for line in lines] == [("http.fault", "/fail")]
    assert caplog.records == []


async def test_exception_in_a_started_response_is_one_log_line_and_aborts_it(
    url: str, caplog: pytest.LogCaptureFixture
) -> None:
    with capture_logs() as lines, caplog.at_level(logging.WARNING):
        async with httpx.AsyncClient(base_url=url) as http:
            with pytest.raises(httpx.RemoteProtocolError):
                await http.get("/break")
    assert lines == []
    assert [record.name for record in caplog.records] == ["uvicorn.error"]
