"""What is recorded when a question goes out to devices (CHN-6): one fact for each target, or that there was none."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, TypeAlias

from passerelle.core.events import Fact
from passerelle.core.payloads.approval import ChannelPermissionForwarded

if TYPE_CHECKING:
    from collections.abc import Sequence

    from passerelle.core.approval_record import ActionRecord

Forwarded: TypeAlias = Literal["sent", "queued", "suppressed", "failed"]


@dataclass(frozen=True, slots=True)
class Target:
    """One connected device of the owner, and how it went. ``queued`` is stored, and on its way after that."""

    channel_id: str
    outcome: Forwarded = "queued"


def record_forwarding(
    record: ActionRecord, targets: Sequence[Target], attempt: int = 1
) -> list[Fact]:
    """A fact for each target in the order given; without any, one that says so, since silence would look like care.

    These facts change no record: they belong beside the opening, or into an append of their own.
    """
    if not targets:
        return [_tell(record, "none", "no_device", attempt, None)]
    return [_tell(record, "ws", target.outcome, attempt, target.channel_id) for target in targets]


def _tell(
    record: ActionRecord,
    transport: Literal["ws", "none"],
    outcome: Forwarded | Literal["no_device"],
    attempt: int,
    channel_id: str | None,
) -> Fact:
    origin = record.request.origin
    forwarded = ChannelPermissionForwarded(
        transport=transport,
        outcome=outcome,
        attempt=attempt,
        asking_peer=origin.peer,
        applies_to=origin.applies_to,
        channel_scoped=origin.applies_to == "channel",
        channel_id=channel_id,
    )
    return Fact(record.scope, forwarded)
