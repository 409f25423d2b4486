"""What an instance counts of its channels: plain numbers, added to on the hot path and read at each scrape."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

DeliveryClass: TypeAlias = Literal["event", "progress", "text"]
"""What goes out at once, what shares a window, and text on its way."""


@dataclass(slots=True)
class ChannelCounts:
    """Counts since the start of the instance."""

    deliveries: Counter[DeliveryClass] = field(default_factory=Counter["DeliveryClass"])
    """Events that were handed to sockets, one for each reader."""
    gaps: Counter[str] = field(default_factory=Counter[str])
    """Gaps that were announced, by why."""
    acks: Counter[str] = field(default_factory=Counter[str])
    """Acks that the store judged, by its word."""
    repairs: int = 0
    """Snapshots that were sent in place of what is missing."""
    replayed: int = 0
    """Events that readers got before they were live."""
    slow: int = 0
    """Readers that were closed, or lost their place, as they took too little."""
    refused: int = 0
    """Connections that were sent away as the instance was full."""
    takeovers: int = 0
    """Connections that a newer one of their device has ended."""
    audit_mismatches: int = 0
    """Streams that an audit found elsewhere than we were: hints were lost, or history was."""

    def count_deliveries(self, events: int, unhurried: int) -> None:
        """Counts events that went out at once, and those that may share a window."""
        self.deliveries["event"] += events
        self.deliveries["progress"] += unhurried
