"""How far views of other shards are behind the streams they are projected from (ST-19, SNAP-21).

The relay of each shard carries rows to task lists and inboxes. Rows not carried yet are in the feed above its mark; the
id of the oldest one contains its time.
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
"""The feed consumer that carries rows to their owners."""
BEHIND_MS: Final = 5_000
"""A lag up to this is normal and not reported; a working relay needs a tenth of a second."""
_KEPT_MS: Final = 1_000


@dataclass(slots=True)
class Lag:
    """Measures the lag, at most once a second for all readers."""

    projections: Projections
    clock: Clock
    _measured_ms: int = -_KEPT_MS
    _behind_ms: int = 0
    _turn: asyncio.Lock = field(default_factory=asyncio.Lock)

    async def find(self) -> FreshnessMark | None:
        """Why a view of other shards may be outdated; None if it is not.

        Raises:
            StoreUnavailable: nothing can be read.
        """
        behind_ms = await self.measure()
        if behind_ms <= BEHIND_MS:
            return None
        reason = f"what changed in the last {behind_ms // 1000} s may not be in the lists yet"
        return stale(reason, behind_ms)

    async def measure(self) -> int:
        """The age of the oldest row that no view shows yet, in ms; 0 if there is none.

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
        """When the oldest uncarried row was written, in ms of the store's clock; None if there is none."""
        mark = await self.projections.read_mark(shard, RELAY)
        after = None if mark is None else mark.partition(".")[2]
        rows = await self.projections.read_feed(shard, after, 1)
        return int(rows[0].id.partition("-")[0]) if rows else None
