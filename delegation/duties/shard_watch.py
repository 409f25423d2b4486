"""A look, once a second, at all shards whose duties are ours: other instances store there without telling.

Where nothing is found that was not there before, nobody is woken: a shard in which nothing happens costs two short
reads in an exchange that it shares with the others. What this process stores wakes the duties by itself.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from passerelle.core.errors import StoreUnavailable

if TYPE_CHECKING:
    from passerelle.core.ids import Shard
    from passerelle.core.ports.shard_poll import ShardHeads, ShardPoll

LOOK_S: Final = 1.0


@dataclass(slots=True)
class ShardWatch:
    """Wakes ``on_due(shard)`` for a new first due row, ``on_feed(shard)`` for new rows of the feed; both if it fails.

    A failure is told like news, for those duties to meet the outage and to know when it is over.
    """

    poll: ShardPoll
    duties: Callable[[], frozenset[Shard]]
    on_due: Callable[[Shard], None]
    on_feed: Callable[[Shard], None]
    read_ms: Callable[[Shard], int]
    """The clock of a shard's primary, in ms: where it jumps, a row is due before the visit that was planned for it."""
    _seen: dict[Shard, ShardHeads] = field(default_factory=dict["Shard", "ShardHeads"])

    async def run(self) -> None:
        """Looks until cancelled."""
        while True:
            await asyncio.sleep(LOOK_S)
            await self.look()

    async def look(self) -> None:
        """One look at every shard."""
        shards = [*self.duties()]
        before, self._seen = self._seen, {}
        for shard, found in zip(shards, await self.poll.read_heads(shards), strict=True):
            if isinstance(found, StoreUnavailable):
                self.on_due(shard)
                self.on_feed(shard)
                continue
            self._seen[shard] = found
            seen = before.get(shard)
            is_due = found.due_ms is not None and found.due_ms <= self.read_ms(shard)
            if seen is None or seen.due != found.due or is_due:
                self.on_due(shard)
            if seen is None or seen.feed != found.feed:
                self.on_feed(shard)
