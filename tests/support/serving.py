"""Serves an ASGI application with the gateway's server, in this process."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from passerelle.gateway.server import Server, bind

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from starlette.types import ASGIApp

    from passerelle.gateway.server import Listener


@asynccontextmanager
async def serving(app: ASGIApp) -> AsyncGenerator[Listener]:
    """Serves on a free port until the end of the block."""
    listener, stop = bind("127.0.0.1", 0), asyncio.Event()
    task = asyncio.create_task(Server(app, listener).serve(stop))
    try:
        yield listener
    finally:
        stop.set()
        await task
