"""All edges of the gateway in one application: the A2A face first, then ``/v1``, channels, health, metrics.

Edges only translate; all of them call the same service.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from starlette.routing import Route, WebSocketRoute

from passerelle.channels.origins import WebOrigins
from passerelle.core.errors import InvalidInput
from passerelle.core.frozen import frozen
from passerelle.core.wire.headers import REASON, find_repeated
from passerelle.delegation.runs.callbacks import CallbackEdge
from passerelle.gateway.a2a.cards import CardOptions, PeerExtendedCards, make_card_options
from passerelle.gateway.a2a.face import Face, FaceParts, FaceSettings, make_face
from passerelle.gateway.a2a.paths import AGENTS
from passerelle.gateway.a2a.push import ServicePush
from passerelle.gateway.a2a_socket.edge import SocketEdge
from passerelle.gateway.auth.tickets import Tickets
from passerelle.gateway.channel_edges import make_channel_edges
from passerelle.gateway.channel_port import CHANNEL_PATH
from passerelle.gateway.connection_settings import (
    ConnectionLimits,
    ConnectionMetrics,
    make_connections,
)
from passerelle.gateway.gauges import watch
from passerelle.gateway.http.blobs import BlobEdge, make_blob_route
from passerelle.gateway.http.buttons import ButtonEdge, make_button_route
from passerelle.gateway.http.callbacks import make_callback_route
from passerelle.gateway.http.health import Readiness, make_health_routes
from passerelle.gateway.http.index import INDEX, make_index_route
from passerelle.gateway.http.openapi import make_asyncapi_route, make_openapi_route
from passerelle.gateway.http.pairing import PairingEdge, make_pairing_routes
from passerelle.gateway.http.problem import render_problem
from passerelle.gateway.http.site import find_own_hosts, make_site
from passerelle.gateway.http.streams import make_stream_routes
from passerelle.gateway.http.tickets import TicketEdge, make_ticket_route
from passerelle.gateway.http.v1 import make_v1_routes
from passerelle.gateway.open_work import OpenWork
from passerelle.runtime.common.clock import SystemClock, SystemIds
from passerelle.runtime.common.clock_skew import describe_skew
from passerelle.runtime.common.memory_watch import describe_memory
from passerelle.runtime.common.replica_watch import describe_replicas, describe_risks
from passerelle.runtime.common.signatures import make_jwks_route
from passerelle.runtime.limits.gate import StreamSeats
from passerelle.runtime.observability.logs import Requests

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from starlette.routing import BaseRoute
    from starlette.types import ASGIApp, Receive, Scope, Send

    from passerelle.channels.endpoint import ChannelEndpoint
    from passerelle.gateway.a2a.heads import AsyncHandler, SyncHandler
    from passerelle.gateway.assembly import Gateway
    from passerelle.gateway.auth.access import Access
    from passerelle.gateway.settings.model import Settings
    from passerelle.runtime.common.descriptors import Descriptors

DRAIN_MS: Final = 1_000
DRAIN_JITTER_MS: Final = 3_000
"""How long channel clients have to reconnect elsewhere: it has to fit into the server's shutdown."""


@frozen
class Edges:
    """The application, and how it drains its callers."""

    site: ASGIApp
    face: Face
    drain: Callable[[], Awaitable[None]]
    channels: ChannelEndpoint
    connections: ConnectionLimits
    admits: Callable[[Scope], bool]
    """Whether a handshake on the channel port is allowed, checked as the site checks its requests."""


@frozen
class FaceRouter:
    """Sends requests for agents to the face without passing the router, and all others to the site."""

    face: Face
    site: ASGIApp
    requests: Requests

    @property
    def handle_sync(self) -> SyncHandler:
        """``CachedHeadApp``."""
        return self.face.handle_sync

    @property
    def handle_async(self) -> AsyncHandler:
        """``CachedHeadApp``: only the face caches parsed heads."""
        return self.face.handle_async

    def __call__(self, scope: Scope, receive: Receive, send: Send) -> Awaitable[None]:
        """Serves one request."""
        if scope["type"] == "http":
            repeated = find_repeated([name for name, _ in scope["headers"]])
            if repeated is not None:
                return render_problem(InvalidInput(repeated, REASON))(scope, receive, send)
        if self.face.matches(scope) and not _reads_index(scope):
            return self.face(scope, receive, send)
        self.requests.begin()
        return self.site(scope, receive, send)


def _reads_index(scope: Scope) -> bool:
    """Whether it is a GET of the index page; agents are called by POST."""
    return scope["path"] == INDEX and scope["method"] in {"GET", "HEAD"}


def make_edges(
    gateway: Gateway,
    settings: Settings,
    access: Access,
    find_fault: Callable[[], str | None] = lambda: None,
) -> Edges:
    """Builds the application over a running gateway; ``find_fault`` returns the fault of the configuration file."""
    connections = make_connections(settings)
    gateway.metrics.add(ConnectionMetrics(connections.admission.table))
    devices = access.know_devices(gateway.parts.links.devices.lists)
    is_push_on = gateway.parts.links.push_configs.is_on
    options = make_card_options(settings, gateway.signer, push=is_push_on)
    face = make_face(
        FaceParts(
            gateway.parts.service,
            access.authenticator,
            gateway.peers,
            gateway.metrics,
            SystemClock(),
            SystemIds(),
            push=ServicePush(gateway.parts.service) if is_push_on else None,
            extended_cards=_make_extended_cards(gateway, settings, options),
            reader=access.reader,
            gate=gateway.gate,
            spans=gateway.spans,
            awaits_approval=lambda agent: gateway.terms.find(agent).await_approval,
            seats=StreamSeats(settings.requests.streams),
            memory=gateway.memory,
        ),
        FaceSettings(
            options,
            settings.public_url,
            body_limit_bytes=settings.requests.body_bytes,
            access_log=settings.access_log,
        ),
    )
    tickets = Tickets(gateway.store.tickets, SystemIds())
    gateway.origins.reload(settings.channels.origins)
    channels = make_channel_edges(gateway, settings, access, tickets, face, connections.channels)
    endpoint, streams = channels.endpoint, channels.streams
    access.on_change(endpoint.recheck)
    watch(gateway)
    stopping = asyncio.Event()
    routes = [
        *_make_routes(gateway, access, endpoint, connections.descriptors, stopping, find_fault),
        *make_pairing_routes(PairingEdge(gateway.parts.links.devices.pairing)),
        make_button_route(
            ButtonEdge(gateway.parts.links.devices.tokens, devices, gateway.parts.service)
        ),
        make_openapi_route(settings.public_url),
        make_socket_route(face, tickets, gateway.origins),
        make_blob_route(_make_blob_edge(gateway, access)),
        make_ticket_route(TicketEdge(tickets, access.authenticator, access.reader)),
        *make_stream_routes(streams),
    ]
    site = make_site(
        routes,
        settings,
        lambda rest: FaceRouter(face, rest, Requests(SystemIds())),
    )

    async def drain() -> None:
        stopping.set()
        streams.drain()
        gateway.parts.permissions.question_waits.drain()
        gateway.parts.subagents.waits.drain()
        await asyncio.gather(face.drain(), endpoint.drain(DRAIN_MS, DRAIN_JITTER_MS))
        await streams.finish()
        channels.rest.end()

    admits = find_own_hosts(settings).admits if settings.auth == "open" else _admit_all
    return Edges(site, face, drain, endpoint, connections, admits)


def _admit_all(_scope: Scope) -> bool:
    return True


def make_socket_route(face: Face, tickets: Tickets, origins: WebOrigins) -> BaseRoute:
    """The route of A2A over WebSocket."""
    sockets = SocketEdge(face, tickets.redeem, origins)
    return WebSocketRoute(f"{AGENTS}/{{rest:path}}", sockets.handle)


def _make_extended_cards(
    gateway: Gateway, settings: Settings, options: CardOptions
) -> PeerExtendedCards | None:
    """None without authentication: then the public card is open to all callers anyway."""
    if settings.auth == "open":
        return None
    return PeerExtendedCards(
        gateway.peers,
        options,
        SystemClock(),
        public_url=settings.public_url,
        local_url=f"{'https' if settings.tls else 'http'}://{settings.host}:{settings.port}",
    )


def _make_blob_edge(gateway: Gateway, access: Access) -> BlobEdge:
    dispatch = gateway.parts.dispatch
    return BlobEdge(
        dispatch.uploads,
        dispatch.outputs,
        gateway.peers.dials_in,
        access.authenticator,
        access.reader,
        gateway.gate,
    )


def _make_routes(
    gateway: Gateway,
    access: Access,
    endpoint: ChannelEndpoint,
    descriptors: Descriptors,
    stopping: asyncio.Event,
    find_fault: Callable[[], str | None],
) -> list[BaseRoute]:
    async def probe() -> Readiness:
        if stopping.is_set():
            return Readiness(ready=False, reason="stopping")
        if descriptors.are_out():
            return Readiness(ready=False, reason="out of file descriptors")
        await gateway.store.probe()
        await gateway.store.replicas.look()
        return Readiness(
            ready=True,
            configuration=find_fault(),
            policy=gateway.terms.rulebook.warning,
            replicas=describe_replicas(gateway.store.replicas),
            durability=describe_risks(gateway.store.replicas),
            clock=describe_skew(gateway.store.clock),
            memory=describe_memory(gateway.store.memory),
            archive=gateway.duties.sweeps.archive.obstacle,
            blobs=gateway.store.blob_failures.describe(),
        )

    work = OpenWork(gateway.parts.overviews, gateway.metrics, gateway.store.clock)
    return [
        *make_v1_routes(
            gateway.parts.service,
            access.authenticator,
            SystemIds(),
            access.reader,
            gateway.gate,
            gateway.parts.actions.read_ahead,
            gateway.metrics.count_v1,
        ),
        make_index_route(),
        make_asyncapi_route(),
        *([make_jwks_route(gateway.signer)] if gateway.signer else []),
        *make_health_routes(probe, gateway.metrics, work.refresh),
        *_make_callback_routes(gateway),
        WebSocketRoute(CHANNEL_PATH, endpoint.handle),
        Route(CHANNEL_PATH, endpoint.explain),
    ]


def _make_callback_routes(gateway: Gateway) -> list[BaseRoute]:
    """Empty without a public URL: then no peer has a callback address."""
    dispatch = gateway.parts.dispatch
    if dispatch.callbacks is None:
        return []
    return [make_callback_route(CallbackEdge(dispatch.callbacks, dispatch.hint))]
