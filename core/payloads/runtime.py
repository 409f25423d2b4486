"""Reports of the runtime about itself (EVC-18, EVC-19)."""

from __future__ import annotations

from typing import ClassVar, TypeAlias

from passerelle.core.event_type import EventType
from passerelle.core.wire.record import record


@record
class SnapshotUpdated:
    """A read model was stored again; ``covers`` is its last sequence, or that of this event if absent.

    It is the last fact of a turn. The facts and the records are one write, and the store assigns the sequences (I1).
    """

    type: ClassVar = EventType.SNAPSHOT_UPDATED
    model: str
    covers: int | None = None


@record
class WarningRaised:
    """Something was dropped, repaired or looked wrong, and work went on."""

    type: ClassVar = EventType.RUNTIME_WARNING
    code: str
    message: str


@record
class ErrorRaised:
    """A part of the runtime stopped."""

    type: ClassVar = EventType.RUNTIME_ERROR
    code: str
    message: str


RuntimePayload: TypeAlias = SnapshotUpdated | WarningRaised | ErrorRaised
