"""How far the views of other shards are behind the streams that they are made of (ST-19, SNAP-21).

A list of a caller's tasks, and an inbox, are carried there by the relay of each shard. What it has not carried yet
stands in the feed above its mark, and the id of the oldest such row says since when.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from passerelle.core.ids import ALL_SHARDS, Shard
from passerelle.core.read_models.mark import stale

if TYPE_CHECKING:
    from passerelle.core.ports.chance import Clock
    from passerelle.core.ports.projections import Projections
    from passerelle.core.read_models.mark import FreshnessMark

RELAY: Final = "relay"
"""The consumer of the feed that carries rows to their owners."""
BEHIND_MS: Final = 5_000
"""As long as this it may take without a word: a relay that works takes a tenth of a second."""
_KEPT_MS: Final = 1_000


@dataclass(slots=True)
class Lag:
    """Measures it, at most once a second for everybody who reads."""

    projections: Projections
    clock: Clock
    _measured_ms: int = -_KEPT_MS
    _behind_ms: int = 0
    _turn: asyncio.Lock = field(default_factory=asyncio.Lock)

    async def find(self) -> FreshnessMark | None:
        """Why a view of other shards may not show what is the case; None where nothing speaks against it.

        Raises:
            StoreUnavailable: nothing can be read.
        """
        behind_ms = await self.measure()
        if behind_ms <= BEHIND_MS:
            return None
        reason = f"what changed in the last {behind_ms // 1000} s may not be in the lists yet"
        return stale(reason, behind_ms)

    async def measure(self) -> int:
        """For how long the oldest row has waited that no view shows yet, in ms; 0 where none waits.

        Raises:
            StoreUnavailable: nothing can be read.
        """
        async with self._turn:
            now_ms = self.clock.now_ms()
            if now_ms - self._measured_ms >= _KEPT_MS:
                oldest = await asyncio.gather(*map(self._find_oldest, ALL_SHARDS))
                self._behind_ms = max((now_ms - at_ms for at_ms in oldest if at_ms), default=0)
                self._measured_ms = now_ms
        return self._behind_ms

    async def _find_oldest(self, shard: Shard) -> int | None:
        """When the oldest row was written that has not been carried, in ms of the store's clock."""
        mark = await self.projections.read_mark(shard, RELAY)
        after = None if mark is None else mark.partition(".")[2]
        rows = await self.projections.read_feed(shard, after, 1)
        return int(rows[0].id.partition("-")[0]) if rows else None
