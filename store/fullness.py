"""The memory level of the store. The last part of the memory is reserved for existing tasks.

An engine at its limit refuses all writes, and every task stops. So new tasks are refused before that. Each primary has
a limit of its own; the fullest counts, because a new task may be placed on any of them.
"""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Final

from passerelle.core.errors import StoreUnavailable
from passerelle.core.frozen import frozen

if TYPE_CHECKING:
    from collections.abc import Mapping

    from passerelle.store.nodes import Nodes

RETRY_S: Final = 30


class Fullness(StrEnum):
    """The memory level."""

    NORMAL = "normal"
    LOW = "low"
    """The operator should act."""
    FULL = "full"
    """New tasks are refused."""


_BEGINS: Final = {Fullness.FULL: 0.90, Fullness.LOW: 0.80}
_SLACK: Final = 0.02
"""Hysteresis: a level ends this far below its threshold, so that it does not change with each task."""


@frozen
class MemoryReport:
    """Memory of one primary, in bytes; ``limit`` 0: it has none."""

    used: int = 0
    limit: int = 0

    @property
    def share(self) -> float:
        """Used share of the limit; 0 without one."""
        return self.used / self.limit if self.limit else 0.0


def read_memory_report(info: Mapping[str, str]) -> MemoryReport:
    """The report from the INFO section ``memory``; buffers of replicas and of the log do not count."""
    uncounted = int(info.get("mem_not_counted_for_evict", "0"))
    used = int(info.get("used_memory", "0")) - uncounted
    return MemoryReport(max(used, 0), int(info.get("maxmemory", "0")))


def judge(before: Fullness, share: float) -> Fullness:
    """The level for a share, given the level before."""
    for fullness, begins in _BEGINS.items():
        has_begun = before is fullness or (before is Fullness.FULL and fullness is Fullness.LOW)
        if share >= begins - _SLACK * has_begun:
            return fullness
    return Fullness.NORMAL


class StoreMemory:
    """The memory of all primaries, by their last reports (``RedisReplicas.look``)."""

    def __init__(self, nodes: Nodes) -> None:
        self._nodes = nodes
        self.fullness = Fullness.NORMAL
        """The level at the last look."""

    @property
    def fullest(self) -> MemoryReport:
        """The report of the primary with the largest share."""
        return max((node.memory for node in self._nodes.all), key=lambda one: one.share)

    def look(self) -> Fullness:
        """Updates and returns the level."""
        self.fullness = judge(self.fullness, self.fullest.share)
        return self.fullness

    def check_room(self) -> None:
        """Checks the level before a new task is accepted.

        Raises:
            StoreUnavailable: the remaining memory is reserved for existing tasks.
        """
        if self.fullness is Fullness.FULL:
            raise StoreUnavailable("its memory is nearly full", "no", RETRY_S)
