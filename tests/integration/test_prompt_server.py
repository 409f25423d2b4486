"""Shutdown without a time limit: the server closes the connections that would delay it."""

import asyncio
import socket
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import pytest
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.routing import Route

from passerelle.gateway.server import PromptServer

pytestmark = pytest.mark.anyio


async def answer(_request: Request) -> PlainTextResponse:
    return PlainTextResponse("here")


@asynccontextmanager
async def serving() -> AsyncGenerator[tuple[int, PromptServer, asyncio.Task[None]]]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        config = uvicorn.Config(
            Starlette(routes=[Route("/", answer)]),
            lifespan="off",
            log_config=None,
            timeout_keep_alive=600,
            timeout_graceful_shutdown=None,
        )
        server = PromptServer(config)
        task = asyncio.create_task(server.serve([listener]))
        try:
            yield listener.getsockname()[1], server, task
        finally:
            server.force_exit = True
            server.end()
            await task


async def test_idle_keep_alive_connection_is_closed_on_shutdown() -> None:
    async with serving() as (port, server, task):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
        assert (await asyncio.wait_for(reader.readuntil(b"here"), 15)).startswith(b"HTTP/1.1 200")
        server.end()
        assert await asyncio.wait_for(reader.read(), 15) == b""
        await asyncio.wait_for(task, 15)
        writer.close()


async def test_connection_accepted_during_shutdown_is_closed() -> None:
    async with serving() as (port, server, task):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
        await asyncio.wait_for(reader.readuntil(b"here"), 15)
        with socket.create_connection(("127.0.0.1", port), 15):
            # No loop iteration since: the server accepts the connection and ends in the same one.
            server.end()
            await asyncio.wait_for(task, 15)
        writer.close()


async def test_server_ended_before_it_started_ends() -> None:
    async with serving() as (_, server, task):
        server.end()
        await asyncio.wait_for(task, 15)
