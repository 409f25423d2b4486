"""How full the memory of the store is. What is left near its end is kept for tasks that go on.

An engine that has reached its limit refuses to write anything, and every task stands still. So new tasks are refused
before that. Each primary has a limit of its own; the fullest counts, since a new task may fall to any of them.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Final

from passerelle.core.errors import StoreUnavailable

if TYPE_CHECKING:
    from collections.abc import Mapping

    from passerelle.store.nodes import Nodes

RETRY_S: Final = 30


class Fullness(StrEnum):
    """What the memory that is used means for those who come."""

    NORMAL = "normal"
    LOW = "low"
    """Somebody should do something about it."""
    FULL = "full"
    """New tasks are refused."""


_BEGINS: Final = {Fullness.FULL: 0.90, Fullness.LOW: 0.80}
_SLACK: Final = 0.02
"""What has begun ends this far below, so that it does not come and go with each task."""


@dataclass(frozen=True, slots=True)
class MemoryReport:
    """Of one primary, in bytes; ``limit`` 0: it has none."""

    used: int = 0
    limit: int = 0

    @property
    def share(self) -> float:
        """Of the limit; 0 without one."""
        return self.used / self.limit if self.limit else 0.0


def read_memory_report(info: Mapping[str, str]) -> MemoryReport:
    """The report out of the section ``memory`` of INFO; buffers of replicas and of the log count for no limit."""
    uncounted = int(info.get("mem_not_counted_for_evict", "0"))
    used = int(info.get("used_memory", "0")) - uncounted
    return MemoryReport(max(used, 0), int(info.get("maxmemory", "0")))


def judge(before: Fullness, share: float) -> Fullness:
    """What a share means after what it meant before."""
    for fullness, begins in _BEGINS.items():
        has_begun = before is fullness or (before is Fullness.FULL and fullness is Fullness.LOW)
        if share >= begins - _SLACK * has_begun:
            return fullness
    return Fullness.NORMAL


class StoreMemory:
    """The memory of all primaries, as it was last heard (``RedisReplicas.look``)."""

    def __init__(self, nodes: Nodes) -> None:
        self._nodes = nodes
        self.fullness = Fullness.NORMAL
        """What it meant when somebody looked last."""

    @property
    def fullest(self) -> MemoryReport:
        """Of the primary with the largest share."""
        return max((node.memory for node in self._nodes.all), key=lambda one: one.share)

    def look(self) -> Fullness:
        """What it means now."""
        self.fullness = judge(self.fullness, self.fullest.share)
        return self.fullness

    def check_room(self) -> None:
        """To be called before a new task is taken.

        Raises:
            StoreUnavailable: what is left is kept for tasks that go on.
        """
        if self.fullness is Fullness.FULL:
            raise StoreUnavailable("its memory is nearly full", "no", RETRY_S)
