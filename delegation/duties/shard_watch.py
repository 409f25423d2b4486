"""A look at all shards whose duties are ours, once a second while others live: they store there without telling.

Where nothing is found that was not there before, nobody is woken: a shard in which nothing happens costs two short
reads in an exchange that it shares with the others. What this process stores wakes the duties by itself.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from time import monotonic
from typing import TYPE_CHECKING, Final

from passerelle.core.errors import StoreUnavailable
from passerelle.runtime.common.beat import sleep_until_beat

if TYPE_CHECKING:
    from passerelle.core.ids import Shard
    from passerelle.core.ports.shard_poll import ShardHeads, ShardPoll

_ALONE_S: Final = 5.0
"""While no other instance lives: what a command of an operator stores is seen so soon."""


@dataclass(slots=True)
class ShardWatch:
    """Tells ``on_due(shard, within_s)`` of a first due row that is new or due, ``on_feed(shard)`` of new feed rows.

    A failure is told as both, at once, for those duties to meet the outage and to know when it is over. The row of a
    lease is moved on all the time while its instance has work, and nobody has to visit a shard for that.
    """

    poll: ShardPoll
    duties: Callable[[], frozenset[Shard]]
    on_due: Callable[[Shard, float], None]
    on_feed: Callable[[Shard], None]
    read_ms: Callable[[Shard], int]
    """The clock of a shard's primary, in ms: where it jumps, a row is due before the visit that was planned for it."""
    is_alone: Callable[[], bool] = lambda: False
    """Whether no other instance lives."""
    _seen: dict[Shard, ShardHeads] = field(default_factory=dict["Shard", "ShardHeads"])

    async def run(self) -> None:
        """Looks until cancelled."""
        looked_s = -math.inf
        while True:
            await sleep_until_beat()
            now_s = monotonic()
            if now_s - looked_s >= _ALONE_S or not self.is_alone():
                looked_s = now_s
                await self.look()

    async def look(self) -> None:
        """One look at every shard."""
        shards = [*self.duties()]
        before, self._seen = self._seen, {}
        for shard, found in zip(shards, await self.poll.read_heads(shards), strict=True):
            if isinstance(found, StoreUnavailable):
                self.on_due(shard, 0.0)
                self.on_feed(shard)
                continue
            self._seen[shard] = found
            seen = before.get(shard)
            wait_ms = math.inf if found.due_ms is None else found.due_ms - self.read_ms(shard)
            if seen is None or wait_ms <= 0:
                self.on_due(shard, 0.0)
            elif seen.due != found.due:
                self.on_due(shard, wait_ms / 1000)
            if seen is None or seen.feed != found.feed:
                self.on_feed(shard)
