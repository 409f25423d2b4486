"""The duty that completes erasures that have begun, and repeats those that a loss or a restore has undone."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from passerelle.core.ids import ALL_SHARDS
from passerelle.delegation.duties.failure_log import log_failures

if TYPE_CHECKING:
    from collections.abc import Callable

    from structlog.typing import FilteringBoundLogger

    from passerelle.core.ids import Shard
    from passerelle.store.archive.forgetting import Forgetting
    from passerelle.store.archive.session_forgetting import SessionForgetting

_FIRST_S: Final = 5.0
_EVERY_S: Final = 600.0
_LOOKS_BACK_MS: Final = 7 * 24 * 3_600_000
"""A failover may undo erasures that are younger than this."""


@dataclass(slots=True)
class ForgetSweep:
    """Sweeps the owners and sessions of this instance's shards soon after the start, and every ten minutes."""

    forgetting: Forgetting
    session_forgetting: SessionForgetting
    duties: Callable[[], frozenset[Shard]]
    read_ms: Callable[[Shard], int]
    read_epoch: Callable[[Shard], int]
    log: FilteringBoundLogger
    first_s: float = _FIRST_S
    every_s: float = _EVERY_S
    _epochs: tuple[int, ...] | None = None
    """The epochs of all shards at the last sweep."""

    async def run(self) -> None:
        """Sweeps until cancelled."""
        await asyncio.sleep(self.first_s)
        while True:
            with log_failures(self.log, "forgetting.failed"):
                await self.sweep()
            await asyncio.sleep(self.every_s)

    async def sweep(self) -> int:
        """Sweeps once; returns how many tombstones still had data.

        When a shard has a new epoch, checks all tombstones of the last week, also finished ones: the lost writes may
        be in another shard than the tombstone.

        Raises:
            StoreUnavailable: the engine or the archive does not answer; the rest is left to the next sweep.
        """
        shards = self.duties()
        if not shards:
            return 0
        epochs = tuple(map(self.read_epoch, ALL_SHARDS))
        has_lost = self._epochs is not None and epochs != self._epochs
        now_ms = max(map(self.read_ms, shards))
        since_ms = now_ms - _LOOKS_BACK_MS if has_lost else now_ms + _LOOKS_BACK_MS
        owners = await self.forgetting.resume(shards, since_ms)
        sessions = await self.session_forgetting.resume(shards, since_ms)
        self._epochs = epochs
        done = [(one.key.text, one.by) for one in owners] + [(one.id, one.by) for one in sessions]
        for tombstone, by in done:
            self.log.warning("forgetting.resumed", tombstone=tombstone, by=by)
        return len(done)
