"""The context sent with a turn, and the boundary below which history is compacted (EVC-12, EVC-13, SNAP-6)."""

from __future__ import annotations

from typing import ClassVar, Literal, TypeAlias

from passerelle.core.event_type import EventType
from passerelle.core.facts import ErrorDetail
from passerelle.core.wire.record import record

ContextKind: TypeAlias = Literal[
    "history", "task", "artifact", "policy", "memory", "knowledge", "source"
]


OmittedReason: TypeAlias = Literal[
    "too_large", "forbidden", "expired", "missing", "media_type_not_accepted", "other_peer"
]


@record
class ContextItem:
    """Something attached to the outgoing message. For history, ``ref`` is its first turn."""

    kind: ContextKind
    ref: str
    size: int | None = None


@record
class OmittedItem:
    """A requested or usual attachment that was not sent."""

    kind: ContextKind
    ref: str
    reason: OmittedReason


@record
class ContextResolved:
    """What was attached for the agent, and what was left out and why (EVC-12)."""

    type: ClassVar = EventType.CONTEXT_RESOLVED
    peer: str
    selected: tuple[ContextItem, ...] = ()
    omitted: tuple[OmittedItem, ...] = ()
    more: int | None = None
    """How many further items of either kind are not listed."""


@record
class CompactionStarted:
    """A summary is about to replace the facts ``first`` to ``last``, up to the end of ``to_turn`` (EVC-13)."""

    type: ClassVar = EventType.CONTEXT_COMPACTION_STARTED
    boundary_id: str
    cause: Literal["age", "size", "command"]
    first: int
    last: int
    to_turn: str | None = None
    actor: str | None = None


@record
class CompactionCompleted:
    """The summary is in place: a reader may begin at ``first_kept``; nothing before it is deleted (EVC-13).

    ``refs.summary`` is the summary, ``sha256`` its hash, ``summarized_by`` its author. ``archive`` is a ref of the
    session up to the boundary. ``still_open`` are tasks and approvals from before it that are still open, ``missing``
    the summarized content that is no longer kept (SNAP-6).
    """

    type: ClassVar = EventType.CONTEXT_COMPACTION_COMPLETED
    boundary_id: str
    archive: str
    sha256: str
    first_kept: int
    still_open: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()
    to_turn: str | None = None
    summarized_by: str | None = None
    artifact_id: str | None = None
    """The artifact that the summary was taken from."""


@record
class CompactionFailed:
    """The summary could not be stored, and there is no boundary (EVC-13)."""

    type: ClassVar = EventType.CONTEXT_COMPACTION_FAILED
    boundary_id: str
    error: ErrorDetail


ContextPayload: TypeAlias = (
    ContextResolved | CompactionStarted | CompactionCompleted | CompactionFailed
)
