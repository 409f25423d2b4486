"""Reasoning of a worker or agent, kept apart from its answer (EVC-7)."""

from __future__ import annotations

from typing import ClassVar, Literal, TypeAlias

from passerelle.core.event_type import EventType
from passerelle.core.wire.record import record


@record
class ReasoningDelta:
    """A chunk of reasoning; published only, never stored, and shown only in a full view (EVC-7)."""

    type: ClassVar = EventType.REASONING_DELTA
    text: str
    block: str


@record
class ReasoningSummary:
    """The reasoning of one block, whole or as a preview of ``refs.output``; never part of an answer (EVC-7)."""

    type: ClassVar = EventType.REASONING_SUMMARY
    text: str
    block: str
    source: Literal["worker_thought", "marked_part"]


ReasoningPayload: TypeAlias = ReasoningDelta | ReasoningSummary
