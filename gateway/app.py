"""The gateway process: starts the core, then the edges, and stops both in reverse order.

The shutdown has ten seconds: it takes no new work, closes streams and channels, releases the runs (their leases record
that, and other instances resume them), releases the leases, and stops the engine last. Only this process ends; no task
does (I6).
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING

import structlog

from passerelle.core.errors import EngineFailed
from passerelle.core.frozen import frozen
from passerelle.gateway.assembly import open_gateway
from passerelle.gateway.auth.access import open_access
from passerelle.gateway.channel_port import open_channel_port
from passerelle.gateway.edges import make_edges
from passerelle.gateway.grpc.extra import open_grpc
from passerelle.gateway.reload import Reloading, apply_settings
from passerelle.gateway.server import Server, bind, stop_on_signals
from passerelle.gateway.server_tls import load_server_tls
from passerelle.gateway.settings.layers import Sources
from passerelle.gateway.settings.model import is_loopback
from passerelle.gateway.systemd import find_service_manager
from passerelle.protocol.concurrency import cancel_all
from passerelle.runtime.common.collector import calm_collector
from passerelle.runtime.memory.machine import give_back, use_one_arena

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from passerelle.gateway.assembly import Gateway
    from passerelle.gateway.auth.access import Access
    from passerelle.gateway.auth.owner import OwnerToken
    from passerelle.gateway.server_tls import ServerTls
    from passerelle.gateway.settings.model import Settings
    from passerelle.gateway.systemd import ServiceManager
    from passerelle.store.engine import EmbeddedEngine


@frozen
class Addresses:
    """The addresses of this process; None for what it does not serve."""

    url: str
    grpc: str | None
    channels: str | None
    """The URL of the port that serves channels only."""


async def run_gateway(
    settings: Settings,
    *,
    on_ready: Callable[[Addresses], Coroutine[None, None, None]] | None = None,
    on_owner: Callable[[OwnerToken], None] | None = None,
    sources: Sources | None = None,
) -> None:
    """Serves until SIGTERM or SIGINT. Calls ``on_ready`` once requests are served, ``on_owner`` with the owner token.

    With ``sources`` it reloads the configuration when the file changes and on SIGHUP.

    Raises:
    ConfigInvalid: the port is in use, or a directory, the server or the secret key cannot be used.
    DirectoryInUse, EngineFailed, StoreUnavailable: the store cannot be opened.
    """
    use_one_arena()
    tls = load_server_tls(settings)
    listener = bind(settings.host, settings.port, "https" if tls else "http")
    stop = asyncio.Event()
    manager = find_service_manager(sources.environ if sources else {})
    try:
        async with open_gateway(settings) as gateway:
            async with open_access(settings, gateway.store, on_owner) as access:
                reloading = _make_reloading(gateway, access, settings, sources, tls)
                edges = make_edges(gateway, settings, access, lambda: reloading.fault)
                server = Server(
                    edges.site,
                    listener,
                    edges.drain,
                    settings.channels.inbound_bytes,
                    tls.context if tls else None,
                    settings.requests.body_bytes,
                    edges.connections.admission,
                )
                async with (
                    open_grpc(settings, edges.face, tls, edges.connections) as port,
                    open_channel_port(settings, edges, tls) as channels,
                ):
                    grpc = None if port is None else f"{settings.host}:{port}"
                    _warn_unencrypted(settings)
                    calm_collector()
                    ready = _announce(Addresses(listener.url, grpc, channels), on_ready, manager)
                    await _serve(gateway, server, stop, ready, reloading, manager)
            _raise_fault(gateway)
    finally:
        listener.close()


def _make_reloading(
    gateway: Gateway,
    access: Access,
    settings: Settings,
    sources: Sources | None,
    tls: ServerTls | None,
) -> Reloading:
    async def apply(old: Settings, new: Settings) -> None:
        if tls is not None and tls.renew(new.tls):
            structlog.get_logger("passerelle").info("tls.renewed")
        await apply_settings(gateway, access, old, new)

    def note_fault(fault: str | None) -> None:
        gateway.terms.fault = fault

    known = sources or Sources(environ={}, folder=Path())
    watches = sources is not None
    return Reloading(known, settings, apply, gateway.metrics, watches=watches, on_fault=note_fault)


async def _serve(
    gateway: Gateway,
    server: Server,
    stop: asyncio.Event,
    announcement: Coroutine[None, None, None],
    reloading: Reloading,
    manager: ServiceManager,
) -> None:
    with stop_on_signals(stop, server.abandon_answers):
        watch = asyncio.create_task(_watch(gateway, stop))
        ready = asyncio.create_task(announcement)
        reload = asyncio.create_task(reloading.run(), name="config")
        memory = asyncio.create_task(give_back(), name="memory")
        alive = asyncio.create_task(manager.keep_alive(), name="watchdog")
        ending = asyncio.create_task(_announce_end(stop, manager), name="service.end")
        try:
            await server.serve(stop)
        finally:
            await cancel_all((ready, watch, reload, memory, alive, ending))


def _warn_unencrypted(settings: Settings) -> None:
    """Warns about plain text beyond this machine, unless a proxy in front ends TLS (A2A 1.0 section 7.1)."""
    is_behind = settings.public_url is not None and settings.public_url.startswith("https://")
    if settings.tls is None and not is_behind and not is_loopback(settings.host):
        structlog.get_logger("passerelle").warning("server.unencrypted", host=settings.host)


async def _announce(
    addresses: Addresses,
    on_ready: Callable[[Addresses], Coroutine[None, None, None]] | None,
    manager: ServiceManager,
) -> None:
    manager.notify("READY=1")
    if on_ready is not None:
        await on_ready(addresses)


async def _announce_end(stop: asyncio.Event, manager: ServiceManager) -> None:
    await stop.wait()
    manager.notify("STOPPING=1")


async def _watch(gateway: Gateway, stop: asyncio.Event) -> None:
    """Stops the process when the engine or the duties have failed for good."""
    waits = [asyncio.create_task(gateway.duties.wait_failed())]
    if gateway.engine is not None:
        waits.append(asyncio.create_task(_wait_engine_failed(gateway.engine)))
    try:
        await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        stop.set()
    finally:
        for wait in waits:
            wait.cancel()


async def _wait_engine_failed(engine: EmbeddedEngine) -> None:
    await asyncio.shield(engine.failed)


def _raise_fault(gateway: Gateway) -> None:
    engine = gateway.engine
    log = structlog.get_logger("passerelle")
    if engine is not None and engine.failed.done():
        error = engine.failed.result()
        log.error("runtime.error", code=error.code, part="engine")
        raise error
    if gateway.duties.failed is not None:
        log.error("runtime.error", code="duties_crashed", part="duties")
        raise EngineFailed("the duties of this instance have crashed; see the log")
