"""The duty that erases sessions once they have been over for ``retention.forget``.

It works in parts, and rests after each for ten times as long as the part took: no caller waits for it.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from time import monotonic
from typing import TYPE_CHECKING, Final

from passerelle.delegation.duties.failure_log import log_failures
from passerelle.store.archive.ended_tasks import list_tasks
from passerelle.store.archive.session_survey import SessionChoice
from passerelle.store.archive.terms import ForgetTerms

if TYPE_CHECKING:
    from collections.abc import Callable

    from structlog.typing import FilteringBoundLogger

    from passerelle.core.ids import Shard
    from passerelle.store.archive.frame import SessionFrame
    from passerelle.store.archive.session_forgetting import SessionForgetting

BY: Final = "retention.forget"
"""The actor in tombstones."""
_LOOKS: Final = 24
"""Sweeps within the shortest time for which a session is kept: each reads the footers of the archive."""
_SOONEST_S: Final = 1.0
_LATEST_S: Final = 6 * 3600.0
_AT_ONCE: Final = 500
"""Sessions per part."""
_RESTS: Final = 10


@dataclass(slots=True)
class RetentionSweep:
    """``count(outcome, sessions)`` counts for the metrics. ``terms`` may be replaced while the sweep runs."""

    forgetting: SessionForgetting
    duties: Callable[[], frozenset[Shard]]
    read_ms: Callable[[Shard], int]
    log: FilteringBoundLogger
    count: Callable[[str, int], None]
    terms: ForgetTerms = field(default_factory=ForgetTerms)
    rest_share: float = _RESTS

    async def run(self) -> None:
        """Sweeps until cancelled."""
        while True:
            shortest_ms = self.terms.shortest_ms
            every_s = _LATEST_S if shortest_ms is None else shortest_ms / 1000 / _LOOKS
            await asyncio.sleep(min(max(every_s, _SOONEST_S), _LATEST_S))
            with log_failures(self.log, "retention.failed", self.count):
                await self.sweep()

    async def sweep(self) -> int:
        """Erases the sessions of this instance's shards that are due; returns how many.

        Raises:
            StoreUnavailable: the engine or the archive does not answer, or is damaged; the next sweep continues.
        """
        shards, shortest_ms = self.duties(), self.terms.shortest_ms
        if not shards or shortest_ms is None:
            return 0
        now_ms = min(map(self.read_ms, shards))
        terms = self.terms

        def is_due(frame: SessionFrame) -> bool:
            keep_ms, end_ms = terms.find_keep_ms(list_tasks(frame)), frame.find_end()
            return keep_ms is not None and end_ms is not None and end_ms <= now_ms - keep_ms

        choice = SessionChoice(now_ms - shortest_ms, shards=shards, accepts=is_due)
        gone, walk = 0, await self.forgetting.begin(choice)
        while not walk.is_over:
            began_s = monotonic()
            done = await self.forgetting.forget_part(walk, BY, _AT_ONCE)
            gone += done.count
            if done.count:
                self.count("forgotten", done.count)
                tombstones = [one.id for one in done.tombstones]
                self.log.info("retention.forgotten", sessions=done.count, tombstones=tombstones)
            if not walk.is_over:
                await asyncio.sleep((monotonic() - began_s) * self.rest_share)
        return gone
