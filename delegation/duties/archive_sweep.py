"""The duty that moves sessions from the engine to the archive once they have been over for ``retention.memory``.

A session with tasks of several agents stays as long as the longest of their times.

The instance with the duty of a shard sweeps it at intervals. When the memory of the store runs low, a sweep starts
early: the closer the memory is to the point where new tasks are refused, the sooner a session leaves after its end.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from dataclasses import dataclass, field
from time import monotonic
from typing import TYPE_CHECKING, Final

from passerelle.core.chunks import in_chunks
from passerelle.delegation.duties.failure_log import log_failures
from passerelle.protocol.concurrency import join_all
from passerelle.store.archive.archiver import join_parts, split_into_segments
from passerelle.store.archive.terms import MemoryTerms
from passerelle.store.fullness import Fullness

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping, Sequence

    from structlog.typing import FilteringBoundLogger

    from passerelle.core.ids import Shard
    from passerelle.store.archive.archiver import Archiver, ArchiveResult
    from passerelle.store.archive.ended_sessions import EndedSession, EndedSessions
    from passerelle.store.archive.session_agents import SessionAgents
    from passerelle.store.fullness import StoreMemory

_LOOKS: Final = 5
"""Sweeps within the time for which a session stays: the cost of each grows with the number of sessions."""
_SOONEST_S: Final = 1.0
_LATEST_S: Final = 6 * 3600.0
_PRESSED_S: Final = 10.0
_FINDING_SHARE: Final = 10
"""Searching takes at most a tenth of the time. What is found is archived at once: waiting makes it no cheaper."""
_SEGMENTS_AT_ONCE: Final = 2
"""One is read while the other is written to disk. More of them would delay callers."""
_FEW: Final = 16
"""Fewer sessions of a shard are archived only after one of them has waited ``_LONGEST_WAIT_MS`` for others."""
_LONGEST_WAIT_MS: Final = 3_600_000
_PRESSED_MS: Final = 60_000
"""Under memory pressure a session stays at least this long: most contexts that continue do so within it."""
_BEGINS, _ENDS = 0.80, 0.90
"""Shares of the memory between which the time shrinks."""


@dataclass(slots=True)
class ArchiveSweep:
    """``count(outcome, sessions)`` counts for the metrics. ``terms`` may be replaced while the sweep runs."""

    ended: EndedSessions
    agents: SessionAgents
    archiver: Archiver
    memory: StoreMemory
    duties: Callable[[], frozenset[Shard]]
    read_ms: Callable[[Shard], int]
    log: FilteringBoundLogger
    count: Callable[[str, int], None]
    terms: MemoryTerms = field(default_factory=MemoryTerms)
    find_obstacle: Callable[[], Awaitable[str | None]] | None = None
    """Returns why sessions may not leave now; asked before each sweep, since another instance may change it."""
    obstacle: str | None = None
    """Its last result."""
    _finding_s: float = field(default=0.0, init=False)
    """How long the last sweep took to find the sessions that are over, in seconds."""

    async def run(self) -> None:
        """Sweeps until cancelled."""
        looked_s = monotonic()
        while True:
            shortest_ms = self.terms.shortest_ms
            every_s = _LATEST_S if shortest_ms is None else shortest_ms / 1000 / _LOOKS
            every_s = min(max(every_s, _SOONEST_S), _LATEST_S)
            await asyncio.sleep(max(min(every_s, _PRESSED_S), self._finding_s * _FINDING_SHARE))
            if monotonic() - looked_s >= every_s or self._is_pressed:
                looked_s = monotonic()
                with log_failures(self.log, "archive.failed", self.count):
                    if await self.may_archive():
                        await self.sweep()

    async def may_archive(self) -> bool:
        """Whether sessions may leave; a new reason against it is logged once.

        Raises:
            StoreUnavailable: the obstacle cannot be determined.
        """
        found = None
        if self.find_obstacle is not None and self.terms.shortest_ms is not None:
            found = await self.find_obstacle()
        before, self.obstacle = self.obstacle, found
        if found is not None and found != before:
            self.log.warning("archive.off", reason=found)
        return found is None

    async def sweep(self) -> int:
        """Archives the sessions of this instance's shards that are over; returns how many.

        Raises:
            StoreUnavailable: the engine or the archive does not answer; sessions that left stay archived.
        """
        shards, terms = self.duties(), self.find_terms()
        if not shards or (shortest_ms := terms.shortest_ms) is None:
            return 0
        # The clocks of shards differ by milliseconds.
        now_ms = min(map(self.read_ms, shards))
        before_ms = now_ms - shortest_ms
        began_s = monotonic()
        ended = await self.ended.find(shards, before_ms)
        due_ms = await self._find_due(ended, terms, now_ms)
        self._finding_s = monotonic() - began_s
        segments = join_parts(
            (shard, part)
            for shard, sessions in ended.items()
            for part in self._choose(sessions, due_ms, now_ms)
        )
        left = size = 0
        for some in in_chunks(segments, _SEGMENTS_AT_ONCE):
            for archived in await join_all(self._archive(one, before_ms) for one in some):
                left += len(archived.sessions)
                size += archived.bytes
        if left:
            self.log.info("archive.swept", sessions=left, bytes=size)
        return left

    async def _find_due(
        self, ended: Mapping[Shard, Sequence[EndedSession]], terms: MemoryTerms, now_ms: int
    ) -> dict[str, int]:
        """When each session may leave, in ms; sessions that stay for good are missing.

        Reads the agents of a session only where they make a difference.
        """
        longest_ms = terms.longest_ms
        kept_ms = dict[str, int | None]()
        asked = defaultdict["Shard", list["EndedSession"]](list)
        for shard, one in ((shard, one) for shard, part in ended.items() for one in part):
            if longest_ms is not None and one.at_ms + longest_ms < now_ms:
                kept_ms[one.session] = longest_ms
            else:
                asked[shard].append(one)
        for session, agents in (await self.agents.find(asked)).items():
            kept_ms[session] = terms.find_keep_ms(agents)
        every = (one for part in ended.values() for one in part)
        return {
            one.session: one.at_ms + keep_ms
            for one in every
            if (keep_ms := kept_ms[one.session]) is not None
        }

    async def _archive(
        self, sessions: Mapping[Shard, Sequence[str]], before_ms: int
    ) -> ArchiveResult:
        archived = await self.archiver.archive_together(sessions, before_ms)
        self.ended.forget(archived.stay)
        self.count("archived", len(archived.sessions))
        return archived

    def find_terms(self) -> MemoryTerms:
        """How long sessions stay at the present memory usage."""
        if not self._is_pressed:
            return self.terms
        room = (_ENDS - self.memory.fullest.share) / (_ENDS - _BEGINS)
        return self.terms.shorten(min(room, 1.0), _PRESSED_MS)

    @property
    def _is_pressed(self) -> bool:
        return self.memory.fullness is not Fullness.NORMAL

    def _choose(
        self, sessions: Sequence[EndedSession], due_ms: Mapping[str, int], now_ms: int
    ) -> list[list[EndedSession]]:
        """Splits the sessions that are due into segments, oldest first; a small segment waits a while for more."""
        parts = split_into_segments([one for one in sessions if _is_due(one, due_ms, now_ms)])
        if not parts or self._is_pressed or len(parts[-1]) >= _FEW:
            return parts
        wait_ms = min(self.terms.shortest_ms or 0, _LONGEST_WAIT_MS)
        longest_ago_ms = now_ms - min(due_ms[one.session] for one in parts[-1])
        return parts[:-1] if longest_ago_ms < wait_ms else parts


def _is_due(one: EndedSession, due_ms: Mapping[str, int], now_ms: int) -> bool:
    at_ms = due_ms.get(one.session)
    return at_ms is not None and at_ms < now_ms
