"""Under the idempotency key of a message: what a repeat of the same request finds."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from passerelle.core.batch import IdempotencyRow
from passerelle.core.wire.codec import to_bytes
from passerelle.core.wire.record import record
from passerelle.runtime.records.places import hash_key

if TYPE_CHECKING:
    from passerelle.core.principal import Principal

IDEMPOTENCY_MS: Final = 24 * 3600 * 1000


@record
class TurnReceipt:
    """What a repeat of the same request finds under its idempotency key."""

    session_id: str
    thread_id: str
    turn_id: str
    task_id: str
    context_id: str


def remember(principal: Principal, idem: str, digest: str, receipt: TurnReceipt) -> IdempotencyRow:
    """The row of a request; ``digest`` tells it from others under the same key."""
    return IdempotencyRow(
        key=hash_key(principal, idem),
        digest=digest,
        result=to_bytes(receipt),
        ttl_ms=IDEMPOTENCY_MS,
    )
