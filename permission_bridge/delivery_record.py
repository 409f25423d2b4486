"""What is recorded when a question goes out to people (CHN-6): one fact for each target, or that there was none."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal, TypeAlias

from passerelle.core.events import Fact
from passerelle.core.payloads.approval import ChannelPermissionForwarded

if TYPE_CHECKING:
    from collections.abc import Sequence

    from passerelle.core.approval.record import ActionRecord

Forwarded: TypeAlias = Literal["sent", "queued", "suppressed", "failed"]
Way: TypeAlias = Literal["ws", "webpush", "webhook"]

MOST: Final = 48
"""Targets that are told of in one append; nobody has more devices than this at once."""


@dataclass(frozen=True, slots=True)
class DeliveryTarget:
    """One device or receiver, and how it went. ``queued`` is stored, and on its way after that.

    ``channel_id`` names the link, or the receiver of a webhook; ``reason`` is a short word for what failed.
    """

    channel_id: str | None
    outcome: Forwarded = "queued"
    way: Way = "ws"
    device_id: str | None = None
    reason: str | None = None


_NOBODY: Final = DeliveryTarget(None)


def record_forwarding(
    record: ActionRecord, targets: Sequence[DeliveryTarget], attempt: int = 1
) -> list[Fact]:
    """A fact for each target in the order given; without any, one that says so, since silence would look like care.

    These facts change no record: they belong beside the opening, or into an append of their own.
    """
    if not targets:
        return [_tell(record, "none", "no_device", attempt, _NOBODY)]
    return [_tell(record, one.way, one.outcome, attempt, one) for one in targets[:MOST]]


def _tell(
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
