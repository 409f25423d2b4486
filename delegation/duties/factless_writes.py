"""Appends without facts: they settle a due row, or move a run between driver sets."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from passerelle.core.batch import (
    Again,
    Appended,
    Batch,
    DueChange,
    DueClaim,
    IdempotencyRow,
    StaleEpoch,
)
from passerelle.core.frozen import frozen
from passerelle.core.ids import Shard, derive_id

if TYPE_CHECKING:
    from passerelle.core.batch import AppendResult, RunMove
    from passerelle.core.ports.chance import Ids
    from passerelle.core.ports.due import DueRow
    from passerelle.core.ports.log import EventLog

_KEPT_MS: Final = 60_000
_TRIES: Final = 3


@frozen
class FactlessWrites:
    """Writes batches that change no record. A batch needs a session for its shard: a derived id that never exists."""

    log: EventLog
    ids: Ids

    async def drop_row(self, shard: Shard, row: DueRow) -> bool:
        """Takes a claimed row out of the due set; False when it was claimed again or settled meanwhile.

        Raises:
            StoreUnavailable: the row stays.
        """
        result = await self.write(shard, claim=row)
        return isinstance(result, Appended | Again)

    async def write(
        self,
        shard: Shard,
        *,
        claim: DueClaim | None = None,
        due: tuple[DueChange, ...] = (),
        runs: tuple[RunMove, ...] = (),
    ) -> AppendResult:
        """One append without facts.

        Raises:
            StoreUnavailable: nothing is known to be written.
        """
        op = self.ids.mint("op", shard)
        for _ in range(_TRIES - 1):
            result = await self._append(shard, op, claim, due, runs)
            if not isinstance(result, StaleEpoch):
                return result
        return await self._append(shard, op, claim, due, runs)

    async def _append(
        self,
        shard: Shard,
        op: str,
        claim: DueClaim | None,
        due: tuple[DueChange, ...],
        runs: tuple[RunMove, ...],
    ) -> AppendResult:
        batch = Batch(
            session=derive_id("se", shard, "settling"),
            op=op,
            shard_epoch=self.log.shard_epoch(shard),
            stream_epoch=f"{self.ids.draw(32):08x}",
            runs=runs,
            claim=claim,
            due=due,
            feed=False,
            # No version is compared here, so this row keeps a repeated append from being applied twice.
            idem=IdempotencyRow(key=op, digest=op, result=b"", ttl_ms=_KEPT_MS),
        )
        return await self.log.append(batch)
