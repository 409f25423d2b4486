"""The channel edges: device streams over WebSocket and plain HTTP, calls over channels, and their metrics.

Both edges share one hub, one set of access rules and one set of states. Calls use the same method table as ``/v1``
(CMD-27). Metrics are read from the counters and the current state at each scrape.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

from passerelle.channels.endpoint import ChannelEndpoint
from passerelle.channels.replays import Replays
from passerelle.channels.services import ChannelServices
from passerelle.channels.states import States
from passerelle.channels.texts import Texts
from passerelle.core.frozen import frozen
from passerelle.core.session.device import name_list
from passerelle.gateway.http.stream_link import StreamLinks
from passerelle.gateway.http.streams import StreamEdge
from passerelle.gateway.reverse.outgoing_calls import OutgoingCalls
from passerelle.gateway.rpc.table import ANSWERING, call
from passerelle.runtime.common.calls import Caller
from passerelle.runtime.common.clock import SystemClock, SystemIds
from passerelle.runtime.common.collector import GcPause

if TYPE_CHECKING:
    from collections import Counter

    from prometheus_client.core import Metric

    from passerelle.channels.counts import ChannelCounts
    from passerelle.channels.hub import Hub
    from passerelle.control.service import Service
    from passerelle.core.principal import Principal
    from passerelle.core.wire.json import JsonObject
    from passerelle.gateway.a2a.face import Face
    from passerelle.gateway.assembly import Gateway
    from passerelle.gateway.auth.access import Access
    from passerelle.gateway.auth.tickets import Tickets
    from passerelle.gateway.settings.model import Settings
    from passerelle.permission_bridge.answers.actions import Actions
    from passerelle.runtime.limits.gate import Gate


@frozen
class ServiceCalls:
    """``channels.services.Calls`` over the same method table as ``/v1``."""

    service: Service
    actions: Actions
    gate: Gate | None

    async def call(
        self, principal: Principal, method: str, data: JsonObject, idem: str | None
    ) -> JsonObject:
        """Executes one method."""
        return await call(self.service, Caller(principal, "channel", idem), method, data, self.gate)

    def foresee(self, principal: Principal, method: str, data: JsonObject) -> None:
        """Starts reading the approval that an answer is for."""
        action = data.get("actionId")
        if method == ANSWERING and isinstance(action, str):
            self.actions.read_ahead(action, name_list(principal))


@dataclass(frozen=True, slots=True, eq=False)
class ChannelMetrics(Collector):
    """``passerelle_channel_*``."""

    counts: ChannelCounts
    hub: Hub
    endpoint: ChannelEndpoint

    def collect(self) -> Iterator[Metric]:
        """Yields all of them."""
        yield from self._show_current()
        counts = self.counts
        yield _make_counter(
            "deliveries", "Events and text written to sockets.", "class", counts.deliveries
        )
        yield _make_counter("gaps", "Gaps sent to readers.", "why", counts.gaps)
        yield _make_counter("acks", "Acks by result.", "result", counts.acks)
        for name, about, value in (
            ("repairs", "Snapshots sent in place of missing events.", counts.repairs),
            ("replay_events", "Events replayed to readers before they were live.", counts.replayed),
            ("slow", "Slow readers that lost their position.", counts.slow),
            (
                "refused",
                "Connections rejected because the instance was full.",
                counts.refused,
            ),
            ("takeovers", "Connections replaced by a newer one.", counts.takeovers),
            (
                "audit_mismatch",
                "Streams whose position did not match the store at an audit.",
                counts.audit_mismatches,
            ),
        ):
            yield CounterMetricFamily(f"passerelle_channel_{name}", about, value)

    def _show_current(self) -> Iterator[Metric]:
        endpoint, hub = self.endpoint, self.hub
        for name, about, value in (
            ("connections", "Open channel connections.", endpoint.connections),
            ("streams", "Streams followed for readers.", hub.streams),
            ("ring_bytes", "Bytes of recent events kept for these streams.", hub.ring_bytes),
            (
                "position_lag_events",
                "How many events the furthest reader is behind.",
                endpoint.find_lag(),
            ),
        ):
            yield GaugeMetricFamily(f"passerelle_channel_{name}", about, value)


def _make_counter(name: str, about: str, label: str, counts: Counter[Any]) -> CounterMetricFamily:
    family = CounterMetricFamily(f"passerelle_channel_{name}", about, labels=[label])
    for key, value in sorted(counts.items()):
        family.add_metric([key], value)
    return family


@frozen
class ChannelEdges:
    """``endpoint`` serves WebSockets, ``streams`` plain HTTP; ``rest`` pauses the garbage collector in bursts."""

    endpoint: ChannelEndpoint
    streams: StreamEdge
    rest: GcPause


def make_channel_edges(
    gateway: Gateway,
    settings: Settings,
    access: Access,
    tickets: Tickets,
    face: Face,
    most: int | None,
) -> ChannelEdges:
    """Builds the edges over a running gateway, with at most ``most`` connections."""
    parts, store = gateway.parts, gateway.store
    limits = settings.channels.limits()
    if most is not None:
        limits = replace(limits, connections=min(limits.connections, most))
    states = States(store.log, parts.snapshots)
    services = ChannelServices(
        hub=gateway.hub,
        texts=Texts(store.deltas, parts.dispatch.open_text),
        log=store.log,
        acks=store.acks,
        channels=store.channels,
        presences=store.presences,
        access=parts.grants,
        snapshots=parts.snapshots,
        states=states,
        replays=Replays(limits.replays, limits.replay_wait_s),
        calls=ServiceCalls(parts.service, parts.actions, gateway.gate),
        links=gateway.links,
        authenticator=access.authenticator,
        read_credentials=access.reader.read_scope,
        clock=SystemClock(),
        store_clock=store.clock,
        ids=SystemIds(),
        redeem=tickets.redeem,
        agents=gateway.host,
        asked=OutgoingCalls(face.operations, face.parts),
    )
    streams = StreamEdge(
        gateway.hub,
        states,
        parts.grants,
        access.authenticator,
        access.reader,
        tickets.redeem,
        lambda: SystemIds().draw(32) / 2**32,
        StreamLinks(store.channels, gateway.links, store.clock),
        limits.connections,
        face.operations.seats,
    )
    rest = GcPause()
    endpoint = ChannelEndpoint(services, limits, gateway.origins, rest.join)
    gateway.metrics.add(ChannelMetrics(gateway.hub.counts, gateway.hub, endpoint))
    return ChannelEdges(endpoint, streams, rest)
