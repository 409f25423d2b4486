"""Records the delivery of an approval request to people (CHN-6): one fact per target, or one that there was none."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Literal, TypeAlias

from passerelle.core.events import Fact
from passerelle.core.frozen import frozen
from passerelle.core.payloads.approval import ChannelPermissionForwarded

if TYPE_CHECKING:
    from collections.abc import Sequence

    from passerelle.core.approval.record import ActionRecord

Forwarded: TypeAlias = Literal["sent", "queued", "suppressed", "failed"]
Way: TypeAlias = Literal["ws", "webpush", "webhook"]

MOST: Final = 48
"""Targets recorded in one append; a person has fewer devices than this."""


@frozen
class DeliveryTarget:
    """One device or webhook receiver, and the outcome. ``queued`` means stored, to be sent later.

    ``channel_id`` is the id of the connection, or of the webhook receiver; ``reason`` is a short word for the failure.
    """

    channel_id: str | None
    outcome: Forwarded = "queued"
    way: Way = "ws"
    device_id: str | None = None
    reason: str | None = None


_NO_TARGET: Final = DeliveryTarget(None)


def record_forwarding(
    record: ActionRecord, targets: Sequence[DeliveryTarget], attempt: int = 1
) -> list[Fact]:
    """One fact per target in the given order; without targets one ``no_device`` fact, so that the gap is visible.

    These facts change no record: they are appended together with the opening of the request, or on their own.
    """
    if not targets:
        return [_make_fact(record, "none", "no_device", attempt, _NO_TARGET)]
    return [_make_fact(record, one.way, one.outcome, attempt, one) for one in targets[:MOST]]


def _make_fact(
    record: ActionRecord,
    transport: Way | Literal["none"],
    outcome: Forwarded | Literal["no_device"],
    attempt: int,
    target: DeliveryTarget,
) -> Fact:
    origin = record.request.origin
    forwarded = ChannelPermissionForwarded(
        transport=transport,
        outcome=outcome,
        attempt=attempt,
        asking_peer=origin.peer,
        applies_to=origin.applies_to,
        channel_scoped=origin.applies_to == "channel",
        channel_id=target.channel_id,
        device_id=target.device_id,
        reason=target.reason,
    )
    return Fact(record.scope, forwarded)
