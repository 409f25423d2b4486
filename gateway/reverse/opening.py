"""Puts together what serves agents that dial in, and runs it."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from passerelle.gateway.reverse.host import Host

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from passerelle.gateway.reverse.routing import Routing
    from passerelle.peers.registry import PeerRegistry


@asynccontextmanager
async def open_host(peers: PeerRegistry, routing: Routing, instance: str) -> AsyncGenerator[Host]:
    """The host of one instance, at work."""
    host = Host(routing.dialling, peers, routing, instance, routing.service.dispatch.log)
    running = asyncio.create_task(host.run(), name="agents")
    try:
        yield host
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
