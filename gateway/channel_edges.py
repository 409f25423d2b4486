"""Streams for devices, over WebSockets and over plain HTTP: two edges on one hub, one set of rights and of states."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from passerelle.channels.endpoint import ChannelEndpoint
from passerelle.channels.replays import Replays
from passerelle.channels.services import ChannelServices
from passerelle.channels.states import States
from passerelle.channels.texts import Texts
from passerelle.control.channel_access import ServiceAccess, ServiceSnapshots
from passerelle.gateway.channel_calls import ServiceCalls
from passerelle.gateway.channel_metrics import ChannelMetrics
from passerelle.gateway.http.stream_link import StreamLinks
from passerelle.gateway.http.streams import StreamEdge
from passerelle.gateway.reverse.asking import Asking
from passerelle.runtime.common.clock import SystemClock, SystemIds
from passerelle.runtime.common.collector import CollectorRest

if TYPE_CHECKING:
    from passerelle.gateway.a2a.face import Face
    from passerelle.gateway.assembly import Gateway
    from passerelle.gateway.auth.access import Access
    from passerelle.gateway.auth.tickets import Tickets
    from passerelle.gateway.settings import Settings


@dataclass(frozen=True, slots=True)
class ChannelEdges:
    """``endpoint`` serves WebSockets, ``streams`` plain HTTP; ``rest`` is the collector's while many come in."""

    endpoint: ChannelEndpoint
    streams: StreamEdge
    rest: CollectorRest


def make_channel_edges(
    gateway: Gateway,
    settings: Settings,
    access: Access,
    tickets: Tickets,
    face: Face,
    most: int | None = None,
) -> ChannelEdges:
    """The edges over a gateway that works; ``most`` connections there is room for."""
    service, store = gateway.service, gateway.store
    limits = settings.channels.limits()
    if most is not None:
        limits = replace(limits, connections=min(limits.connections, most))
    rights, snapshots = ServiceAccess(service), ServiceSnapshots(service)
    states = States(store.log, snapshots)
    services = ChannelServices(
        hub=gateway.hub,
        texts=Texts(store.deltas, service.dispatch.open_text),
        log=store.log,
        acks=store.acks,
        channels=store.channels,
        presences=store.presences,
        access=rights,
        snapshots=snapshots,
        states=states,
        replays=Replays(limits.replays, limits.replay_wait_s),
        calls=ServiceCalls(service, gateway.gate),
        links=gateway.links,
        authenticator=access.authenticator,
        read_credentials=access.reader.read_scope,
        clock=SystemClock(),
        store_clock=store.clock,
        ids=SystemIds(),
        redeem=tickets.redeem,
        agents=gateway.host,
        asked=Asking(face.operations, face.parts),
    )
    streams = StreamEdge(
        gateway.hub,
        states,
        rights,
        access.authenticator,
        access.reader,
        tickets.redeem,
        lambda: SystemIds().draw(32) / 2**32,
        StreamLinks(store.channels, gateway.links, store.clock),
        limits.connections,
        face.operations.seats,
    )
    rest = CollectorRest()
    endpoint = ChannelEndpoint(services, limits, settings.channels.origins, rest.join)
    gateway.metrics.add(ChannelMetrics(gateway.hub.counts, gateway.hub, endpoint))
    return ChannelEdges(endpoint, streams, rest)
