"""Computes how many connections each port takes, from the settings and the descriptor limit of the process."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

from passerelle.core.frozen import frozen
from passerelle.gateway.connections import (
    ConnectionTable,
    find_backlog,
    find_most,
    find_most_of_address,
    find_most_of_channels,
    find_most_of_grpc,
    read_descriptor_limit,
)
from passerelle.gateway.proxies import Proxies
from passerelle.gateway.server import BACKLOG, ServerAdmission
from passerelle.runtime.common.descriptors import Descriptors

if TYPE_CHECKING:
    from prometheus_client.core import Metric

    from passerelle.gateway.settings.model import Settings


@dataclass(frozen=True, slots=True, eq=False)
class ConnectionMetrics(Collector):
    """``passerelle_connections*``."""

    table: ConnectionTable

    def collect(self) -> Iterator[Metric]:
        """Yields all of them."""
        yield GaugeMetricFamily(
            "passerelle_connections", "Open connections over HTTP.", len(self.table)
        )
        over = CounterMetricFamily(
            "passerelle_connections_over",
            "Connections over the limit, by outcome.",
            labels=["outcome"],
        )
        for outcome in ("evicted", "refused"):
            over.add_metric([outcome], self.table.counts[outcome])
        yield over


@frozen
class ConnectionLimits:
    """``admission`` limits HTTP and its sockets; the others limit gRPC, and channels on a port of their own.

    None is no limit.
    """

    admission: ServerAdmission
    grpc: int | None
    grpc_of_address: int | None
    channels: int | None
    descriptors: Descriptors


def make_connections(settings: Settings, limit: int | None = None) -> ConnectionLimits:
    """Computes the limits for ``limit`` descriptors; by default those of this process."""
    found = read_descriptor_limit() if limit is None else limit
    room = None if found is None else find_most(found)
    most = min((one for one in (settings.connections.most, room) if one is not None), default=None)
    grpc = channels = None
    if most is not None and settings.grpc.port is not None:
        grpc = find_most_of_grpc(most)
        most = max(most - grpc, 1)
    if most is not None and settings.channels.port is not None:
        channels = find_most_of_channels(most)
        most = max(most - channels, 1)
    per_address = settings.connections.per_address
    if per_address is None and most is not None:
        per_address = find_most_of_address(most)
    proxy = settings.proxy
    proxies = Proxies(proxy.addresses, proxy.address_header) if proxy else None
    table = ConnectionTable(most, per_address, proxies)
    backlog = BACKLOG if found is None else min(BACKLOG, find_backlog(found, find_most(found)))
    descriptors = Descriptors(read_descriptor_limit)
    admission = ServerAdmission(table, backlog, descriptors.watch)
    grpc_of_address = settings.connections.per_address
    if grpc_of_address is None and grpc is not None:
        grpc_of_address = find_most_of_address(grpc)
    return ConnectionLimits(admission, grpc, grpc_of_address, channels, descriptors)
