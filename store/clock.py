"""The time of the store: this process's monotonic clock, and the offset of each primary's clock from it.

Deadlines are judged by the store's clock, so they are written by it as well. Each reply with a time gives bounds: the
server read its clock after the call was sent and before its reply arrived. The offset changes only when it is outside
of these bounds, so without skew it never changes.
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
    """The clock of one primary; before its first reply, that of this machine. Times are milliseconds."""

    __slots__ = ("ahead_ms",)

    def __init__(self, ahead_ms: float | None = None) -> None:
        if ahead_ms is None:
            ahead_ms = read_machine_ms() - monotonic() * 1000
        self.ahead_ms = ahead_ms
        """How far it is ahead of this process's monotonic clock."""

    def note(self, server_ms: int, sent_s: float, received_s: float) -> None:
        """Records that the server read ``server_ms`` (truncated) between two times of the monotonic clock."""
        least_ms, most_ms = server_ms - received_s * 1000, server_ms + 1 - sent_s * 1000
        if self.ahead_ms < least_ms:
            self.ahead_ms = least_ms
        elif self.ahead_ms > most_ms:
            self.ahead_ms = most_ms

    def now_ms(self) -> int:
        """The current time of its clock, accurate to a round trip."""
        return int(self.ahead_ms + monotonic() * 1000)

    @property
    def skew_ms(self) -> float:
        """How far it is ahead of this machine's clock."""
        return self.ahead_ms + monotonic() * 1000 - read_machine_ms()


class StoreClock:
    """``core.ports.chance.Clock`` by the store, for deadlines and timestamps."""

    def __init__(self, nodes: Nodes) -> None:
        self._nodes = nodes

    def now_ms(self) -> int:
        """The time for values that belong to no shard: the clock of the first shard's primary."""
        return self._nodes.primaries[0].time.now_ms()

    def read_ms(self, shard: Shard) -> int:
        """The clock of the primary that judges the deadlines of a shard."""
        return self._nodes.primaries[shard.number].time.now_ms()

    @property
    def skew_ms(self) -> float:
        """The largest skew of a primary's clock from this machine's; positive: ahead."""
        return max((node.time.skew_ms for node in self._nodes.all), key=abs, default=0.0)
