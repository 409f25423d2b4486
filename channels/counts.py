"""Channel counters of an instance: plain integers, incremented on the hot path and read at each scrape."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

DeliveryClass: TypeAlias = Literal["event", "progress", "text"]
"""Events that are sent at once, events that share a window, and text deltas."""


@dataclass(slots=True)
class ChannelCounts:
    """Counts since the start of the instance."""

    deliveries: Counter[DeliveryClass] = field(default_factory=Counter["DeliveryClass"])
    """Events handed to sockets, once per reader."""
    gaps: Counter[str] = field(default_factory=Counter[str])
    """Announced gaps, by reason."""
    acks: Counter[str] = field(default_factory=Counter[str])
    """Acks, by the result of the store."""
    repairs: int = 0
    """Snapshots sent in place of missing events."""
    replayed: int = 0
    """Events that readers got before they were live."""
    slow: int = 0
    """Readers that were closed, or lost their position, because they read too slowly."""
    refused: int = 0
    """Connections refused because the instance was full."""
    takeovers: int = 0
    """Connections ended by a newer one of their device."""
    audit_mismatches: int = 0
    """Streams whose head an audit found at another position than the follower's: hints or history were lost."""

    def count_deliveries(self, events: int, deferrable: int) -> None:
        """Counts events that were sent at once, and events that may share a window."""
        self.deliveries["event"] += events
        self.deliveries["progress"] += deferrable
