"""Visits to the shards whose duties this instance has: each at its own interval, none blocked by another.

A visit returns the seconds until the next one. A change in a shard brings it forward. One shard is never visited
twice at the same time: a change during a visit makes another one follow at once.

Planned visits are in a heap by their time, so that a change in one shard does not scan the others.
"""

from __future__ import annotations

import asyncio
import math
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush
from typing import TYPE_CHECKING, Final

from passerelle.core.errors import StoreUnavailable
from passerelle.runtime.common.beat import BEAT_S

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from structlog.typing import FilteringBoundLogger

    from passerelle.core.ids import Shard

LONGEST_S: Final = 15.0
"""Longest pause between visits. ``ShardWatch`` notices what other instances write into these shards."""
AFTER_FAILURE_S: Final = 0.25
_AT_ONCE: Final = 64
_MOST: Final = 1024
"""Heap entries, most of them for visits that were brought forward since."""


@dataclass(slots=True)
class Rounds:
    """Calls ``visit(shard)`` for every shard of ``duties()``, until ``run`` is cancelled.

    ``count(outcome)`` is called for each failed visit: ``store`` when the store did not answer, else ``fault``.
    """

    name: str
    visit: Callable[[Shard], Awaitable[float]]
    duties: Callable[[], frozenset[Shard]]
    log: FilteringBoundLogger
    count: Callable[[str], None] = lambda _outcome: None
    longest_s: float = LONGEST_S
    _due_s: dict[Shard, float] = field(default_factory=dict["Shard", float])
    _busy: set[Shard] = field(default_factory=set["Shard"])
    _held: set[Shard] = field(default_factory=set["Shard"])
    _owned: frozenset[Shard] = frozenset()
    _again: dict[Shard, float] = field(default_factory=dict["Shard", float])
    _heap: list[tuple[float, Shard]] = field(default_factory=list["tuple[float, Shard]"])
    """A heap of planned visits; entries whose time differs from ``_due_s`` are outdated."""
    _until_s: float = 0.0
    """When the heap is checked next without a change."""
    _changed: asyncio.Event = field(default_factory=asyncio.Event)

    def wake(self, shard: Shard, within_s: float = 0.0) -> None:
        """There is work in a shard; ignored where this instance does not have the duty.

        With ``within_s`` the visit may wait that long, so that several changes share one.
        """
        due_s = asyncio.get_running_loop().time() + within_s
        if shard in self._busy:
            self._again[shard] = min(due_s, self._again.get(shard, due_s))
        elif due_s < self._due_s.get(shard, 0.0):
            self._plan_visit(shard, due_s)

    def _plan_visit(self, shard: Shard, due_s: float) -> None:
        """Plans the next visit of a shard."""
        self._due_s[shard] = due_s
        heappush(self._heap, (due_s, shard))
        if len(self._heap) > _MOST:
            self._sort()
        if due_s < self._until_s:
            self._changed.set()

    def look_again(self) -> None:
        """The duties have changed."""
        self._changed.set()

    async def run(self) -> None:
        """Visits until cancelled; visits in progress are cancelled too."""
        async with asyncio.TaskGroup() as group:
            while True:
                self._changed.clear()
                pause_s = self._start_due(group)
                try:
                    async with asyncio.timeout(pause_s):
                        await self._changed.wait()
                except TimeoutError:
                    continue

    def _start_due(self, group: asyncio.TaskGroup) -> float:
        """Starts the visits that are due; returns the seconds until the next one."""
        now_s = asyncio.get_running_loop().time()
        owned = self.duties()
        if owned is not self._owned:
            self._take_over(owned, now_s)
        due_s = now_s + self.longest_s
        while self._heap and len(self._busy) < _AT_ONCE:
            at_s, shard = self._heap[0]
            is_planned = shard not in self._busy and self._due_s.get(shard) == at_s
            if is_planned and at_s > now_s:
                due_s = min(due_s, at_s)
                break
            heappop(self._heap)
            if is_planned:
                self._busy.add(shard)
                group.create_task(self._visit(shard), name=f"{self.name} {shard.tag}")
        self._until_s = due_s
        return due_s - now_s

    def _take_over(self, owned: frozenset[Shard], now_s: float) -> None:
        """Adopts a new set of duties: a new shard is visited at once."""
        self._owned = owned
        self._held &= owned
        self._due_s = {shard: self._due_s.get(shard, now_s) for shard in owned}
        self._sort()

    def _sort(self) -> None:
        self._heap = [(at_s, shard) for shard, at_s in self._due_s.items()]
        heapify(self._heap)

    async def _visit(self, shard: Shard) -> None:
        pause_s = AFTER_FAILURE_S
        try:
            pause_s = await self.visit(shard)
            self._go_on(shard)
        except StoreUnavailable as error:
            self.count("store")
            self._hold(shard, error.reason)
        except Exception:
            self.count("fault")
            self.log.exception("duty.failed", duty=self.name, shard=shard.tag)
        finally:
            is_full = len(self._busy) >= _AT_ONCE
            self._busy.discard(shard)
            due_s = self._find_next_s(pause_s)
            due_s = min(due_s, self._again.pop(shard, due_s))
            if shard in self._owned:
                self._plan_visit(shard, due_s)
            if is_full:
                self._changed.set()

    def _find_next_s(self, pause_s: float) -> float:
        now_s = asyncio.get_running_loop().time()
        if pause_s < self.longest_s:
            return now_s + max(pause_s, 0.0)
        # Visits without urgency share an exchange with the store.
        return math.ceil((now_s + self.longest_s) / BEAT_S) * BEAT_S

    def _hold(self, shard: Shard, reason: str) -> None:
        """Logs an outage once, though it hits every shard again and again."""
        if not self._held:
            self.log.warning("duty.held", duty=self.name, shard=shard.tag, reason=reason)
        self._held.add(shard)

    def _go_on(self, shard: Shard) -> None:
        if shard in self._held:
            self._held.discard(shard)
            if not self._held:
                self.log.info("duty.resumed", duty=self.name)
