"""Sets the time of a due row that its handler has claimed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from passerelle.core.batch import DueChange, DueClaim, IdempotencyRow
from passerelle.runtime.records.writes import AppendOptions

if TYPE_CHECKING:
    from passerelle.core.decision import Decision
    from passerelle.core.ports.due import DueRow
    from passerelle.runtime.records.writes import Writes

_KEPT_MS: Final = 60_000


async def move_row(writes: Writes, session_id: str, row: DueRow, at_ms: int) -> None:
    """Makes a claimed row of a session due at ``at_ms`` instead; nothing else is stored.

    Raises:
        StoreUnavailable: the row comes due again after the visibility time.
    """

    def body(_decision: Decision) -> AppendOptions:
        key = f"{row.member}:{at_ms}"
        return AppendOptions(
            claim=DueClaim(row.member, row.token),
            due=(DueChange(row.member, at_ms),),
            idem=IdempotencyRow(key=key, digest=key, result=b"", ttl_ms=_KEPT_MS),
        )

    await writes.decide(session_id, [], body)
