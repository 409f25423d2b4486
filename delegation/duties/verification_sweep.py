"""The duty that verifies some sessions each day, so that damage is found before a user meets it.

The sample contains sessions of the engine and of the archive. A difference is reported when it is found twice: in a
session that is being written, a derived row may be missing for a moment.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from passerelle.core.errors import ArchiveDamaged
from passerelle.core.ports.log import StreamKind, StreamRef
from passerelle.delegation.duties.failure_log import log_failures
from passerelle.delegation.verification.report import Problem
from passerelle.delegation.verification.walk import Walk

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from structlog.typing import FilteringBoundLogger

    from passerelle.core.ids import Shard
    from passerelle.store.store import Store

_FIRST_S: Final = 900.0
_EVERY_S: Final = 24 * 3600.0
_SAMPLE: Final = 64
"""Sessions of the engine, and as many of the archive."""
_PAUSE_S: Final = 0.25
"""Pause between two sessions: callers are served meanwhile."""
_AGAIN_S: Final = 30.0
_CHANCE_BITS: Final = 64
_MOST_EVENTS: Final = 2_000
"""Longer sessions are left to the command: a replay would block callers for a tenth of a second and more."""


@dataclass(slots=True)
class VerificationSweep:
    """Sweeps once a day, and a quarter of an hour after the start. ``count(outcome, sessions)`` is for the metrics."""

    store: Store
    duties: Callable[[], frozenset[Shard]]
    draw: Callable[[int], int]
    log: FilteringBoundLogger
    count: Callable[[str, int], None]
    first_s: float = _FIRST_S
    every_s: float = _EVERY_S
    sample: int = _SAMPLE
    pause_s: float = _PAUSE_S
    again_s: float = _AGAIN_S

    async def run(self) -> None:
        """Sweeps until cancelled."""
        await asyncio.sleep(self.first_s)
        while True:
            with log_failures(self.log, "verify.failed", self.count):
                await self.sweep()
            await asyncio.sleep(self.every_s)

    async def sweep(self) -> list[Problem]:
        """Verifies a sample of the shards of this instance; returns and logs the problems.

        Raises:
            StoreUnavailable: the engine or the archive does not answer.
        """
        problems = list[Problem]()
        sessions = await self.store.inspection.draw_sessions(self.duties(), self.sample, self.draw)
        sessions += await self._draw_archived(problems)
        for session in sessions:
            await asyncio.sleep(self.pause_s)
            if not await self._is_short(session):
                continue
            found = await self._verify(session)
            self._log_problems(found)
            self.count("damaged" if found else "whole", 1)
            problems += found
        return problems

    def _log_problems(self, problems: Iterable[Problem]) -> None:
        """Logs problems at once: the rest of a sweep may fail, and the next one draws other sessions."""
        for one in problems:
            self.log.error(
                "verify.problem",
                kind=one.kind,
                session=one.session,
                subject=one.subject,
                detail=one.detail,
            )

    async def _draw_archived(self, problems: list[Problem]) -> list[str]:
        """Draws one session from each of some segments; a segment with a damaged footer is a problem."""
        archive, sessions = self.store.archive, list[str]()
        for shard, segment in await archive.draw_segments(self.duties(), self.sample, self.draw):
            try:
                names = await archive.list_archived(shard, segment)
            except ArchiveDamaged as error:
                self.count("damaged", 1)
                problem = Problem("archive", "no session", segment.name.sha256, error.reason)
                self._log_problems([problem])
                problems.append(problem)
                continue
            if names:
                sessions.append(names[self.draw(_CHANCE_BITS) % len(names)])
        return sessions

    async def _is_short(self, session: str) -> bool:
        try:
            head = await self.store.log.read_head(StreamRef(StreamKind.SESSION, session))
        except ArchiveDamaged:
            return True  # the verification reports it
        return head is not None and head.sequence <= _MOST_EVENTS

    async def _verify(self, session: str) -> list[Problem]:
        found = await self._list_problems(session)
        if not found:
            return []
        await asyncio.sleep(self.again_s)
        again = {(one.kind, one.subject) for one in await self._list_problems(session)}
        return [one for one in found if (one.kind, one.subject) in again]

    async def _list_problems(self, session: str) -> list[Problem]:
        walk = Walk(self.store)
        await walk.verify(session)
        return walk.report.problems
