"""Polls all shards whose duties this instance has, once a second while other instances live: they store there unseen.

Without a change since the last poll nothing is woken: an idle shard costs two short reads in an exchange that it
shares with the others. Appends of this process wake the duties directly.
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
    from passerelle.core.ports.due import ShardHeads, ShardPoll

_ALONE_S: Final = 5.0
"""Seconds between polls while no other instance lives: writes of an operator's command are seen this late."""


@dataclass(slots=True)
class ShardWatch:
    """Calls ``on_due(shard, within_s)`` for a first due row that is new or due, ``on_feed(shard)`` for new feed rows.

    A failed poll calls both at once, so that those duties meet the outage and notice its end. A lease row that its
    living instance moves on needs no visit.
    """

    poll: ShardPoll
    duties: Callable[[], frozenset[Shard]]
    on_due: Callable[[Shard, float], None]
    on_feed: Callable[[Shard], None]
    read_ms: Callable[[Shard], int]
    """The clock of a shard's primary, in ms: after it jumps, a row is due before its planned visit."""
    is_alone: Callable[[], bool] = lambda: False
    """Whether no other instance lives."""
    _seen: dict[Shard, ShardHeads] = field(default_factory=dict["Shard", "ShardHeads"])

    async def run(self) -> None:
        """Polls until cancelled."""
        looked_s = -math.inf
        while True:
            await sleep_until_beat()
            now_s = monotonic()
            if now_s - looked_s >= _ALONE_S or not self.is_alone():
                looked_s = now_s
                await self.look()

    async def look(self) -> None:
        """Polls every shard once."""
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
