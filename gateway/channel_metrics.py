"""The series of channels: read off the counts and off what stands, whenever somebody scrapes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

if TYPE_CHECKING:
    from collections import Counter

    from prometheus_client.core import Metric

    from passerelle.channels.counts import ChannelCounts
    from passerelle.channels.endpoint import ChannelEndpoint
    from passerelle.channels.hub import Hub


@dataclass(frozen=True, slots=True, eq=False)
class ChannelMetrics(Collector):
    """``passerelle_channel_*``."""

    counts: ChannelCounts
    hub: Hub
    endpoint: ChannelEndpoint

    def collect(self) -> Iterator[Metric]:
        """All of them."""
        yield from self._show_standing()
        counts = self.counts
        yield _by("deliveries", "Events and text handed to sockets.", "class", counts.deliveries)
        yield _by("gaps", "Gaps that were announced.", "why", counts.gaps)
        yield _by("acks", "Acks that the store judged.", "result", counts.acks)
        for name, about, value in (
            ("repairs", "Snapshots in place of what is missing.", counts.repairs),
            ("replay_events", "Events that readers got before they were live.", counts.replayed),
            ("slow", "Readers that took too little and lost their place.", counts.slow),
            (
                "refused",
                "Connections that were sent away as the instance was full.",
                counts.refused,
            ),
            ("takeovers", "Connections that a newer one has ended.", counts.takeovers),
            (
                "audit_mismatch",
                "Streams that an audit found elsewhere than we were.",
                counts.audit_mismatches,
            ),
        ):
            yield CounterMetricFamily(f"passerelle_channel_{name}", about, value)

    def _show_standing(self) -> Iterator[Metric]:
        endpoint, hub = self.endpoint, self.hub
        for name, about, value in (
            ("connections", "Open channel connections.", endpoint.connections),
            ("streams", "Streams that are followed for readers here.", hub.streams),
            ("ring_bytes", "What is kept of the last events of these streams.", hub.ring_bytes),
            (
                "position_lag_events",
                "How many events the furthest reader is behind.",
                endpoint.find_lag(),
            ),
        ):
            yield GaugeMetricFamily(f"passerelle_channel_{name}", about, value)


def _by(name: str, about: str, label: str, counts: Counter[Any]) -> CounterMetricFamily:
    family = CounterMetricFamily(f"passerelle_channel_{name}", about, labels=[label])
    for key, value in sorted(counts.items()):
        family.add_metric([key], value)
    return family
