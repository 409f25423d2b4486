"""The time of the store: this process's monotonic clock, and how far the clock of each primary is from it.

Deadlines are judged by the store's clock, so they are written by it as well. Each reply that carries a time gives
bounds: the server read its clock after the call was sent and before its reply was here. What is known changes only when
it is out of these bounds, so that without skew nothing ever moves.
"""

from __future__ import annotations

import time
from time import monotonic
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from passerelle.core.ids import Shard
    from passerelle.store.nodes import Nodes


def read_machine_ms() -> int:
    """The clock of this machine."""
    return time.time_ns() // 1_000_000  # noqa: TID251  what the store's clock is compared with


class ServerTime:
    """The clock of one primary; before its first reply that of this machine. Times are milliseconds."""

    __slots__ = ("ahead_ms",)

    def __init__(self, ahead_ms: float | None = None) -> None:
        if ahead_ms is None:
            ahead_ms = read_machine_ms() - monotonic() * 1000
        self.ahead_ms = ahead_ms
        """How far it is ahead of the monotonic clock of this process."""

    def note(self, server_ms: int, sent_s: float, received_s: float) -> None:
        """The server read ``server_ms``, a whole number cut off, between two times of the monotonic clock."""
        least_ms, most_ms = server_ms - received_s * 1000, server_ms + 1 - sent_s * 1000
        if self.ahead_ms < least_ms:
            self.ahead_ms = least_ms
        elif self.ahead_ms > most_ms:
            self.ahead_ms = most_ms

    def now_ms(self) -> int:
        """What its clock reads now, to within a round trip."""
        return int(self.ahead_ms + monotonic() * 1000)

    @property
    def skew_ms(self) -> float:
        """How far it is ahead of the clock of this machine."""
        return self.ahead_ms + monotonic() * 1000 - read_machine_ms()


class StoreClock:
    """``core.ports.chance.Clock`` by the store: what becomes a deadline or a timestamp."""

    def __init__(self, nodes: Nodes) -> None:
        self._nodes = nodes

    def now_ms(self) -> int:
        """For what belongs to no shard: the clock of the first one's primary."""
        return self._nodes.primaries[0].time.now_ms()

    def read_ms(self, shard: Shard) -> int:
        """The clock of the primary that judges the deadlines of a shard."""
        return self._nodes.primaries[shard.number].time.now_ms()

    @property
    def skew_ms(self) -> float:
        """How far a primary's clock is from that of this machine, where it is furthest; above 0: ahead."""
        return max((node.time.skew_ms for node in self._nodes.all), key=abs, default=0.0)
