"""Settles due rows that their handler has claimed, or sets another time."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from passerelle.core.batch import DueChange, IdempotencyRow
from passerelle.runtime.records.writes import AppendOptions

if TYPE_CHECKING:
    from passerelle.core.ports.due import DueRow
    from passerelle.runtime.records.writes import Writes

_KEPT_MS: Final = 60_000


def settle_row(row: DueRow, at_ms: int | None) -> AppendOptions:
    """What an append needs to settle a claimed row, and to make it due again at ``at_ms``."""
    # Where nothing else is stored, only this key distinguishes a retry from a second visit (I2).
    key = f"{row.member}:{row.token}"
    return AppendOptions(
        claim=row,
        due=() if at_ms is None else (DueChange(row.member, at_ms),),
        idem=IdempotencyRow(key, key, b"", _KEPT_MS),
    )


async def move_row(writes: Writes, session_id: str, row: DueRow, at_ms: int) -> None:
    """Makes a claimed row of a session due at ``at_ms`` instead; nothing else is stored.

    Raises:
        StoreUnavailable: the row comes due again after the visibility time.
    """
    await writes.decide(session_id, [], lambda _decision: settle_row(row, at_ms))
